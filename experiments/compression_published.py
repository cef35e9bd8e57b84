"""LeNet-5-Caffe on MNIST as the table of the RDP paper lists it: what is left by eight methods.

n1-n2-n3-n4 are channels, channels, inputs left of the first dense layer, and its outputs. FLOPs and
parameters as printed count a dense layer from 16·n2 to n3 that does not exist, and leave out the last one;
`kasuri.experiments.lenet5_counts.LeNet5` counts both ways.
"""

from dataclasses import dataclass

from experiments.lenet5_counts import LeNet5


@dataclass(frozen=True)
class PublishedLeNet5:
    """One row of the table.

    Args:
        widths: what is left.
        thousand_flops: as printed.
        thousand_parameters: as printed.
        error_percent: on the test set, as printed.
    """

    widths: LeNet5
    thousand_flops: float
    thousand_parameters: float
    error_percent: float


LENET5 = {
    "RDP": PublishedLeNet5(LeNet5(4, 7, 110, 66), 125, 20, 1.0),
    "BC-GNJ": PublishedLeNet5(LeNet5(8, 13, 88, 13), 307, 22, 1.0),
    "BC-GHS": PublishedLeNet5(LeNet5(5, 10, 76, 16), 169, 15, 1.0),
    "FDOO(100K)": PublishedLeNet5(LeNet5(2, 7, 112, 478), 119, 66, 1.1),
    "FDOO(200K)": PublishedLeNet5(LeNet5(3, 8, 128, 499), 163, 81, 1.0),
    "GL": PublishedLeNet5(LeNet5(3, 12, 192, 500), 236, 134, 1.0),
    "GD": PublishedLeNet5(LeNet5(7, 13, 208, 16), 298, 49, 1.1),
    "SBP": PublishedLeNet5(LeNet5(3, 18, 284, 283), 295, 164, 0.9),
}
ORIGINAL = LeNet5(20, 50, 800, 500)
