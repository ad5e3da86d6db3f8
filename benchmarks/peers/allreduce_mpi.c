/* all_reduce (float, sum) back to back; one JSON line a size: us_p50 of rank 0's calls.
   Usage: mpirun -np 2 allreduce_mpi BYTES:ITERATIONS ... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int k = 1; k < argc; k++) {
        size_t bytes = strtoull(argv[k], NULL, 10);
        int n = atoi(strchr(argv[k], ':') + 1), warm = n / 10 + 2;
        float *from = malloc(bytes), *to = malloc(bytes);
        double *us = malloc((size_t)n * sizeof *us);
        if (!from || !to || !us) MPI_Abort(MPI_COMM_WORLD, 1);
        memset(from, 0, bytes);
        memset(to, 0, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = -warm; i < n; i++) {
            double start = MPI_Wtime();
            MPI_Allreduce(from, to, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
            if (i >= 0) us[i] = (MPI_Wtime() - start) * 1e6;
        }
        qsort(us, (size_t)n, sizeof *us, compare);
        if (rank == 0) {
            printf("{\"ranks\": %d, \"bytes\": %zu, \"us_p50\": %.3f, \"us_min\": %.3f}\n", ranks,
                   bytes, us[n / 2], us[0]);
            fflush(stdout);
        }
        free(from);
        free(to);
        free(us);
    }
    MPI_Finalize();
    return 0;
}
