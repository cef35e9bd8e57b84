"""What LeNet-5-Caffe holds and does, counted right and as tables of pruned networks count it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LeNet5:
    """LeNet-5-Caffe with n1 and n2 channels, n3 inputs left of the first dense layer and n4 of its outputs.

    conv 5x5 - pool - conv 5x5 - pool - dense - ReLU - dense to 10, no padding, for images of 28 x 28.

    Args:
        n1: channels of the first convolution (20 of the original).
        n2: channels of the second one (50).
        n3: inputs of the first dense layer that are left (800 = 50 · 16).
        n4: its outputs (500).

    Examples:
        >>> LeNet5(20, 50, 800, 500).weights
        430500
    """

    n1: int
    n2: int
    n3: int
    n4: int

    @property
    def weights(self) -> int:
        """In matrices and kernels."""
        return 25 * self.n1 + 25 * self.n1 * self.n2 + self.n3 * self.n4 + 10 * self.n4

    @property
    def macs_and_biases(self) -> int:
        """Multiply-accumulates and biases, once each."""
        dense = (self.n3 + 1) * self.n4 + (self.n4 + 1) * 10
        return self._convolutions() + dense

    def _convolutions(self) -> int:
        return 26 * 24**2 * self.n1 + (25 * self.n1 + 1) * 8**2 * self.n2

    @property
    def table_weights(self) -> int:
        """As the table of the RDP paper counts: with a dense layer from 16·n2 to n3, without the last one."""
        convolutions = 25 * self.n1 + 25 * self.n1 * self.n2
        return convolutions + 16 * self.n2 * self.n3 + self.n3 * self.n4

    @property
    def table_flops(self) -> int:
        """As that table counts, with the same layer that does not exist."""
        dense = (16 * self.n2 + 1) * self.n3 + (self.n3 + 1) * self.n4
        return self._convolutions() + dense
