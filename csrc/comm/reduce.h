// Element-wise reduction of buffers in memory: dst[i] = srcs[0][i] op srcs[1][i] op ..., in this order, so that the
// result depends on nothing but the operands. Picks the widest instructions that this processor has.

#ifndef EPL_COMM_REDUCE_H_
#define EPL_COMM_REDUCE_H_

#include <stdint.h>

#include "comm/epl_comm.h"

namespace epl {

inline int64_t SizeOf(epl_dtype dtype) {
  switch (dtype) {
    case EPL_UINT8:
    case EPL_INT8:
      return 1;
    case EPL_FLOAT16:
    case EPL_BFLOAT16:
      return 2;
    case EPL_INT32:
    case EPL_FLOAT32:
      return 4;
    case EPL_INT64:
    case EPL_FLOAT64:
      return 8;
  }
  return 0;
}

inline bool IsFloating(epl_dtype dtype) {
  return dtype == EPL_FLOAT16 || dtype == EPL_BFLOAT16 || dtype == EPL_FLOAT32 || dtype == EPL_FLOAT64;
}

// `num` >= 1 operands of `count` elements. `scales` may be null; else floating operands are multiplied by theirs,
// integer ones are left alone. dst may be one of the operands. float16 and bfloat16 are reduced in float32 and rounded
// once.
void Reduce(epl_dtype dtype, epl_reduce_op op, void* dst, const void* const* srcs, const double* scales, int num,
            int64_t count);

// The same with portable code alone, for tests.
void ReducePortable(epl_dtype dtype, epl_reduce_op op, void* dst, const void* const* srcs, const double* scales,
                    int num, int64_t count);

}  // namespace epl

#endif  // EPL_COMM_REDUCE_H_
