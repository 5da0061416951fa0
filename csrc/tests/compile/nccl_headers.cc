// Holds the declarations of comm/nccl_api.h against the real headers of NCCL and CUDA. Compiled by a test where they
// are at hand (-I of both); nothing of it runs.

#include <cuda.h>
#include <nccl.h>

#include <type_traits>

#include "comm/nccl_api.h"

namespace {

// Two parameters are passed alike: both pointers, or both of one size and class.
template <typename A, typename B>
struct SameParameter {
  static constexpr bool value = sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value &&
                                std::is_class<A>::value == std::is_class<B>::value &&
                                std::is_floating_point<A>::value == std::is_floating_point<B>::value;
};

template <typename Real, typename Ours>
struct SameAbi : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct SameAbi<R (*)(A...), S (*)(B...)> {
  template <bool... kEach>
  struct All : std::is_same<All<true, kEach...>, All<kEach..., true>> {};
  template <bool kSameCount, typename Dummy>
  struct Check : std::false_type {};
  template <typename Dummy>
  struct Check<true, Dummy> : All<SameParameter<A, B>::value...> {};
  static constexpr bool value = SameParameter<R, S>::value && Check<sizeof...(A) == sizeof...(B), void>::value;
};

using epl::gpu::Api;
#define EPL_CHECK(result, name, parameters) \
  static_assert(SameAbi<decltype(&::name), decltype(Api::name)>::value, #name " is declared otherwise");
EPL_CUDA_FUNCTIONS(EPL_CHECK)
EPL_NCCL_FUNCTIONS(EPL_CHECK)

static_assert(sizeof(ncclUniqueId) == sizeof(epl::gpu::UniqueId), "");
static_assert(int{ncclSum} == epl::gpu::kSum && int{ncclProd} == epl::gpu::kProd, "");
static_assert(int{ncclMax} == epl::gpu::kMax && int{ncclMin} == epl::gpu::kMin, "");
static_assert(int{ncclInt8} == epl::gpu::kInt8 && int{ncclUint8} == epl::gpu::kUint8, "");
static_assert(int{ncclInt32} == epl::gpu::kInt32 && int{ncclInt64} == epl::gpu::kInt64, "");
static_assert(int{ncclFloat16} == epl::gpu::kFloat16 && int{ncclFloat32} == epl::gpu::kFloat32, "");
static_assert(int{ncclFloat64} == epl::gpu::kFloat64, "");
static_assert(int{ncclScalarHostImmediate} == epl::gpu::kScalarHostImmediate, "");
static_assert(int{CUDA_ERROR_NOT_READY} == epl::gpu::kNotReady, "");
static_assert(unsigned{CU_EVENT_DISABLE_TIMING} == epl::gpu::kEventDisableTiming, "");
static_assert(unsigned{CU_STREAM_NON_BLOCKING} == epl::gpu::kStreamNonBlocking, "");

}  // namespace
