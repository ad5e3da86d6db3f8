"""How workers are started: directly, by srun, mpirun or ssh; or joined, when they run already."""
