// EplAllToAll, EplAllToAllV: every rank sends rows to every other.

#include <numeric>

#include "tensorflow/collective_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/shape_functions.h"

namespace epl {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("EplAllToAll")
    .Input("tensor: T")
    .Output("output: T")
    .Attr("T: " EPL_DTYPES)
    .Attr("world: int >= 1")
    .EPL_COLLECTIVE_ATTRS()
    .SetShapeFn([](InferenceContext* context) {
      int world;
      ShapeHandle input;
      TF_RETURN_IF_ERROR(World(context, &world));
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &input));
      if (context->RankKnown(input) && context->ValueKnown(context->Dim(input, 0)) &&
          context->Value(context->Dim(input, 0)) % world != 0) {
        return compat::InvalidArgument("the first dimension, ", context->Value(context->Dim(input, 0)),
                                       ", cannot be cut in ", world, " equal parts; use EplAllToAllV");
      }
      context->set_output(0, input);
      return compat::Ok();
    })
    .Doc(R"doc(
Cuts the rows in as many equal parts as there are ranks, and sends part r to rank r.

tensor: the same shape on every rank; its first dimension is divisible by `world`.
output: the part from rank 0, the part from rank 1, ...
world: number of ranks.
communicator: name of a communicator of this process.
rank: the rank that this op acts for.
key: names the op in messages; the same on every rank.
)doc");

REGISTER_OP("EplAllToAllV")
    .Input("tensor: T")
    .Input("row_splits: int64")
    .Output("output: T")
    .Output("received: int64")
    .Attr("T: " EPL_DTYPES)
    .Attr("world: int >= 1")
    .EPL_COLLECTIVE_ATTRS()
    .SetShapeFn([](InferenceContext* context) {
      int world;
      ShapeHandle input, splits, output;
      TF_RETURN_IF_ERROR(World(context, &world));
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &input));
      TF_RETURN_IF_ERROR(context->Merge(context->input(1), context->Vector(world), &splits));
      TF_RETURN_IF_ERROR(WithRows(context, 0, context->UnknownDim(), &output));
      context->set_output(0, output);
      context->set_output(1, splits);
      return compat::Ok();
    })
    .Doc(R"doc(
Sends the first row_splits[0] rows to rank 0, the next row_splits[1] rows to rank 1, and so on.

tensor: all dimensions but the first are the same on every rank.
row_splits: rows for each rank; they add up to the rows of the tensor.
output: the rows from rank 0, the rows from rank 1, ...
received: how many rows came from each rank.
world: number of ranks.
communicator: name of a communicator of this process.
rank: the rank that this op acts for.
key: names the op in messages; the same on every rank.
)doc");

class AllToAllOp : public CollectiveOp {
 public:
  using CollectiveOp::CollectiveOp;

 protected:
  compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) override {
    call->kind = EPL_ALL_TO_ALL;
    TF_RETURN_IF_ERROR(ReadRows(context, 0, Where(), /*scalar_is_row=*/false, call));
    const int64_t rows = context->input(0).dim_size(0);
    if (rows % world != 0) {
      return compat::InvalidArgument(Where(), ": the first dimension, ", rows, ", cannot be cut in ", world,
                                     " equal parts; give row_splits.");
    }
    call->row_splits.assign(world, rows / world);
    call->allocate = [this, context, rows, world](const int64_t* received, int num_rows, void** output) {
      for (int r = 0; r < num_rows; ++r) {
        if (received[r] != rows / world) {
          return compat::InvalidArgument(Where(), ": this rank has ", rows, " rows, but rank ", r, " has ",
                                         received[r] * world, "; they must be equal, or be given with row_splits.");
        }
      }
      return AllocateRows(context, 0, rows, output);
    };
    return compat::Ok();
  }
};

class AllToAllVOp : public CollectiveOp {
 public:
  using CollectiveOp::CollectiveOp;

 protected:
  compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) override {
    call->kind = EPL_ALL_TO_ALL;
    TF_RETURN_IF_ERROR(ReadRows(context, 0, Where(), /*scalar_is_row=*/false, call));
    TF_RETURN_IF_ERROR(ReadSplits(context, world, &call->row_splits));
    call->allocate = [context](const int64_t* rows, int num_rows, void** output) {
      TF_RETURN_IF_ERROR(WriteRows(context, 1, rows, num_rows));
      return AllocateRows(context, 0, std::accumulate(rows, rows + num_rows, int64_t{0}), output);
    };
    return compat::Ok();
  }

 private:
  compat::Status ReadSplits(tensorflow::OpKernelContext* context, int world, std::vector<int64_t>* splits) const {
    const tensorflow::Tensor& tensor = context->input(1);
    if (tensor.dims() != 1 || tensor.dim_size(0) != world) {
      return compat::InvalidArgument(Where(), ": row_splits has the shape ", tensor.shape().DebugString(),
                                     ", but needs one number for each of the ", world, " ranks.");
    }
    auto values = tensor.vec<compat::Int64>();
    int64_t sum = 0;
    for (int r = 0; r < world; ++r) {
      if (values(r) < 0) {
        return compat::InvalidArgument(Where(), ": row_splits[", r, "] is ", values(r), ".");
      }
      splits->push_back(values(r));
      sum += values(r);
    }
    const int64_t rows = context->input(0).dim_size(0);
    if (sum != rows) {
      return compat::InvalidArgument(Where(), ": row_splits add up to ", sum, ", but the tensor has ", rows, " rows.");
    }
    return compat::Ok();
  }
};

EPL_REGISTER_CPU_KERNEL("EplAllToAll", AllToAllOp);
EPL_REGISTER_GPU_KERNEL("EplAllToAll", AllToAllOp, );
EPL_REGISTER_CPU_KERNEL("EplAllToAllV", AllToAllVOp);
EPL_REGISTER_GPU_KERNEL("EplAllToAllV", AllToAllVOp, .HostMemory("row_splits").HostMemory("received"));

}  // namespace epl
