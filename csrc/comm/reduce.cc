// The portable loops, and the choice between them and the wide ones.

#include "comm/reduce.h"

#define EPL_REDUCE_NAMESPACE portable
#include "comm/reduce_kernels.inc"

namespace epl {

#ifdef EPL_HAVE_AVX2_KERNELS
namespace avx2 {
void Reduce(epl_dtype dtype, epl_reduce_op op, void* dst, const void* const* srcs, const double* scales, int num,
            int64_t count);
}
#endif

void Reduce(epl_dtype dtype, epl_reduce_op op, void* dst, const void* const* srcs, const double* scales, int num,
            int64_t count) {
#ifdef EPL_HAVE_AVX2_KERNELS
  static const bool wide = __builtin_cpu_supports("avx2");  // every processor with AVX2 has F16C
  if (wide) return avx2::Reduce(dtype, op, dst, srcs, scales, num, count);
#endif
  portable::Reduce(dtype, op, dst, srcs, scales, num, count);
}

void ReducePortable(epl_dtype dtype, epl_reduce_op op, void* dst, const void* const* srcs, const double* scales,
                    int num, int64_t count) {
  portable::Reduce(dtype, op, dst, srcs, scales, num, count);
}

}  // namespace epl
