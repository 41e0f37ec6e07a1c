/* Two functions of AArch64, of which one loses fewer registers than others do. */
#define VECTOR __attribute__((aarch64_vector_pcs))
VECTOR double vector_step(double x);
double plain_step(double x);
