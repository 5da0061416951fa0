// EplReduceScatter: the reduction over all ranks, each rank holding its part of the rows.

#include "tensorflow/collective_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/shape_functions.h"

namespace epl {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("EplReduceScatter")
    .Input("weight: double")
    .Input("tensor: T")
    .Output("output: T")
    .Attr("T: " EPL_DTYPES)
    .Attr("reduce_op: " EPL_REDUCE_OPS " = 'sum'")
    .Attr("world: int >= 1")
    .EPL_COLLECTIVE_ATTRS()
    .SetShapeFn([](InferenceContext* context) {
      int world, rank;
      ShapeHandle input, unused;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(World(context, &world));
      TF_RETURN_IF_ERROR(context->GetAttr("rank", &rank));
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(1), 1, &input));
      if (!context->RankKnown(input)) {
        context->set_output(0, input);
        return compat::Ok();
      }
      DimensionHandle rows = context->UnknownDim();
      if (context->ValueKnown(context->Dim(input, 0))) {
        const compat::Int64 total = context->Value(context->Dim(input, 0));
        rows = context->MakeDim(total / world + (rank < total % world ? 1 : 0));
      }
      ShapeHandle output;
      TF_RETURN_IF_ERROR(context->ReplaceDim(input, 0, rows, &output));
      context->set_output(0, output);
      return compat::Ok();
    })
    .Doc(R"doc(
Reduces a tensor over all ranks and leaves each rank its part of the rows.

The first dimension is cut in as many parts as there are ranks; their sizes differ by at most one, the larger ones first.

weight: scalar; tensors of floating dtype are multiplied by it before the reduction. Must be 1 for integers.
tensor: the same shape on every rank, at least one dimension.
output: the rows of this rank's part, reduced.
world: number of ranks.
communicator: name of a communicator of this process.
rank: the rank that this op acts for.
key: names the op in messages; the same on every rank.
)doc");

class ReduceScatterOp : public CollectiveOp {
 public:
  explicit ReduceScatterOp(tensorflow::OpKernelConstruction* construction) : CollectiveOp(construction) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &name));
    OP_REQUIRES_OK(construction, ParseReduceOp(name, &reduce_op_));
  }

 protected:
  compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) override {
    call->kind = EPL_REDUCE_SCATTER;
    call->reduce_op = reduce_op_;
    TF_RETURN_IF_ERROR(ReadWeight(context, context->input_dtype(1), call));
    TF_RETURN_IF_ERROR(ReadRows(context, 1, Where(), /*scalar_is_row=*/false, call));
    call->allocate = [context](const int64_t* rows, int num_rows, void** output) {
      return AllocateRows(context, 1, rows[0], output);
    };
    return compat::Ok();
  }

 private:
  epl_reduce_op reduce_op_;
};

EPL_REGISTER_CPU_KERNEL("EplReduceScatter", ReduceScatterOp);
EPL_REGISTER_GPU_KERNEL("EplReduceScatter", ReduceScatterOp, .HostMemory("weight"));

}  // namespace epl
