"""Tables 1 and 2 of the matrix-normal paper: per cent dropped of each of twelve convolutions.

By experiment and variant of ours: the published family, what was dropped, and the per cents. In
the paper rows are inputs and columns outputs.
"""

DROPPED: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "cifar10-group": {
        "mean-field": ("weights", (30, 61, 40, 52, 49, 35, 57, 69, 84, 80, 89, 90)),
        "matrix-normal": ("weights", (31, 41, 29, 36, 62, 33, 21, 54, 64, 92, 94, 29)),
        "mn-diagonal-free": ("weights", (37, 65, 32, 18, 51, 44, 48, 74, 79, 84, 80, 88)),
    },
    "cifar10-group-4x": {
        "free": ("weights", (22, 50, 44, 32, 33, 29, 24, 42, 56, 74, 91, 90)),
        "inputs": ("columns", (0, 18, 19, 1, 4, 1, 1, 4, 32, 59, 91, 85)),
        "outputs": ("rows", (0, 20, 0, 7, 7, 0, 7, 24, 40, 65, 85, 0)),
    },
}
