"""The radial-directional stack: family, prior, radii, and the von Mises-Fisher distribution."""
