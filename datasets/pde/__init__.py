"""Fields of partial differential equations from spectral solvers, as clips: the playground of rollout objectives."""
