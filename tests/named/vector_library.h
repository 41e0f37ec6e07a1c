/* Two functions for AArch64. One has the vector calling convention, which preserves more
 * registers than the usual one. */
#define VECTOR __attribute__((aarch64_vector_pcs))
VECTOR double vector_step(double x);
double plain_step(double x);
