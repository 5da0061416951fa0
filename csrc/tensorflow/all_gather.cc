// EplAllGather: the rows of all ranks, on all of them.

#include <numeric>

#include "tensorflow/collective_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/shape_functions.h"

namespace epl {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("EplAllGather")
    .Input("tensor: T")
    .Output("output: T")
    .Output("rows: int64")
    .Attr("T: " EPL_DTYPES)
    .Attr("world: int >= 1")
    .Attr("equal_rows: bool = false")
    .EPL_COLLECTIVE_ATTRS()
    .SetShapeFn([](InferenceContext* context) {
      int world;
      bool equal_rows;
      TF_RETURN_IF_ERROR(World(context, &world));
      TF_RETURN_IF_ERROR(context->GetAttr("equal_rows", &equal_rows));
      DimensionHandle rows = context->UnknownDim();
      const ShapeHandle input = context->input(0);
      if (context->RankKnown(input) && context->Rank(input) == 0) {
        rows = context->MakeDim(world);
      } else if (context->RankKnown(input) && equal_rows) {
        TF_RETURN_IF_ERROR(context->Multiply(context->Dim(input, 0), world, &rows));
      }
      ShapeHandle output;
      TF_RETURN_IF_ERROR(WithRows(context, 0, rows, &output));
      context->set_output(0, output);
      context->set_output(1, context->Vector(world));
      return compat::Ok();
    })
    .Doc(R"doc(
Concatenates the tensors of all ranks along their first dimension, in rank order.

tensor: all dimensions but the first are the same on every rank; a scalar counts as one row.
output: rows of rank 0, rows of rank 1, ...; of scalars, a vector.
rows: how many rows came from each rank.
world: number of ranks.
equal_rows: every rank gives equally many rows; lets the output have a static shape, and is checked.
communicator: name of a communicator of this process.
rank: the rank that this op acts for.
key: names the op in messages; the same on every rank.
)doc");

class AllGatherOp : public CollectiveOp {
 public:
  explicit AllGatherOp(tensorflow::OpKernelConstruction* construction) : CollectiveOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("equal_rows", &equal_rows_));
  }

 protected:
  compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) override {
    call->kind = EPL_ALL_GATHER;
    TF_RETURN_IF_ERROR(ReadRows(context, 0, Where(), /*scalar_is_row=*/true, call));
    call->allocate = [this, context](const int64_t* rows, int num_rows, void** output) {
      TF_RETURN_IF_ERROR(CheckEqualRows(rows, num_rows));
      TF_RETURN_IF_ERROR(WriteRows(context, 1, rows, num_rows));
      return AllocateRows(context, 0, std::accumulate(rows, rows + num_rows, int64_t{0}), output);
    };
    return compat::Ok();
  }

 private:
  compat::Status CheckEqualRows(const int64_t* rows, int num_rows) const {
    for (int r = 1; equal_rows_ && r < num_rows; ++r) {
      if (rows[r] != rows[0]) {
        return compat::InvalidArgument(Where(), ": rank 0 gives ", rows[0], " rows and rank ", r, " gives ", rows[r],
                                       ", but the op was built with equal_rows=True.");
      }
    }
    return compat::Ok();
  }

  bool equal_rows_;
};

EPL_REGISTER_CPU_KERNEL("EplAllGather", AllGatherOp);
EPL_REGISTER_GPU_KERNEL("EplAllGather", AllGatherOp, .HostMemory("rows"));

}  // namespace epl
