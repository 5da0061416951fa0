// What nccl.h wants of CUDA's runtime header, which itself wants the compiler's headers that PyPI has in another wheel.

#include <cuda.h>

typedef CUstream cudaStream_t;
