// EplBroadcast: the tensors of one rank, on all of them.

#include "tensorflow/collective_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/shape_functions.h"

namespace epl {

REGISTER_OP("EplBroadcast")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " EPL_DTYPES)
    .Attr("root: int >= 0 = 0")
    .EPL_COLLECTIVE_ATTRS()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) { return SameShapes(context, 0); })
    .Doc(R"doc(
Gives every rank of a communicator the tensors of rank `root`.

tensors: the same shapes on every rank; moved in one transfer. Their values matter on `root` alone.
outputs: the tensors of `root`.
root: the rank whose values are sent.
communicator: name of a communicator of this process.
rank: the rank that this op acts for.
key: names the op in messages; the same on every rank.
)doc");

class BroadcastOp : public CollectiveOp {
 public:
  explicit BroadcastOp(tensorflow::OpKernelConstruction* construction) : CollectiveOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) override {
    if (root_ >= world) {
      return compat::InvalidArgument(Where(), ": root is ", root_, ", but there are only ", world, " ranks.");
    }
    call->kind = EPL_BROADCAST;
    call->root = root_;
    return ForwardBuffers(context, 0, call);
  }

 private:
  int root_;
};

EPL_REGISTER_CPU_KERNEL("EplBroadcast", BroadcastOp);
EPL_REGISTER_GPU_KERNEL("EplBroadcast", BroadcastOp, );

}  // namespace epl
