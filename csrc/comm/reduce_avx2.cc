// The loops of reduce.h for processors with AVX2 and F16C; compiled with these switched on, called only where they are.

#define EPL_REDUCE_NAMESPACE avx2
#include "comm/reduce_kernels.inc"
