#include "tensorflow/collective_op.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "tensorflow/core/framework/cancellation.h"

namespace epl {

namespace tf = tensorflow;

namespace {

// An output of no elements may have no address, and the core takes NULL for a failed allocation.
char empty_buffer;

// A collective is cancelled because something else in the step has failed. TensorFlow puts that first in what it
// reports of the step, and takes its code, only if this one is marked as derived: the end of the data stays
// OUT_OF_RANGE.
compat::Status Cancelled(const char* message) {
  return tf::StatusGroup::MakeDerived(compat::Failure(tf::error::CANCELLED, message));
}

compat::Status ToStatus(int code, const char* message) {
  if (code == EPL_OK) return compat::Ok();
  if (message == nullptr) message = "";
  if (code == tf::error::CANCELLED) return Cancelled(message);
  return compat::Failure(static_cast<tf::error::Code>(code), message);
}

compat::Status ToEplDtype(tf::DataType dtype, epl_dtype* result) {
  switch (dtype) {
    case tf::DT_UINT8:
      *result = EPL_UINT8;
      return compat::Ok();
    case tf::DT_INT8:
      *result = EPL_INT8;
      return compat::Ok();
    case tf::DT_INT32:
      *result = EPL_INT32;
      return compat::Ok();
    case tf::DT_INT64:
      *result = EPL_INT64;
      return compat::Ok();
    case tf::DT_HALF:
      *result = EPL_FLOAT16;
      return compat::Ok();
    case tf::DT_FLOAT:
      *result = EPL_FLOAT32;
      return compat::Ok();
    case tf::DT_DOUBLE:
      *result = EPL_FLOAT64;
      return compat::Ok();
    case tf::DT_BFLOAT16:
      *result = EPL_BFLOAT16;
      return compat::Ok();
    default:
      return compat::Failure(tf::error::UNIMPLEMENTED, "no collective for dtype ", tf::DataTypeString(dtype));
  }
}

void* Address(const tf::Tensor& tensor) {
  void* address = const_cast<char*>(tensor.tensor_data().data());
  return address == nullptr ? &empty_buffer : address;
}

// One execution, from submission to done(). The core holds one reference until it calls Finished, the cancellation
// callback another.
class Pending : public std::enable_shared_from_this<Pending> {
 public:
  Pending(tf::OpKernelContext* context, tf::AsyncOpKernel::DoneCallback done, epl_communicator* communicator)
      : context_(context), done_(std::move(done)), communicator_(communicator) {}

  CollectiveCall* call() { return &call_; }

  void Submit(int rank, const char* key, bool on_gpu) {
    epl_dtype dtype = EPL_FLOAT32;
    compat::Status status = ToEplDtype(call_.dtype, &dtype);
    if (!status.ok()) return Fail(status);
    // A step that is already cancelled submits nothing: the other ranks learn it from the end of the generation.
    if (!RegisterCancellation()) return Fail(Cancelled("the step was cancelled before this collective began"));

    description_.kind = call_.kind;
    description_.dtype = dtype;
    description_.reduce_op = call_.reduce_op;
    description_.root = call_.root;
    description_.key = key;
    description_.num_buffers = static_cast<int>(call_.inputs.size());
    description_.inputs = call_.inputs.data();
    description_.outputs = call_.outputs.empty() ? nullptr : call_.outputs.data();
    description_.counts = call_.counts.data();
    description_.scale = call_.scale;
    description_.row_elements = call_.row_elements;
    description_.row_splits = call_.row_splits.empty() ? nullptr : call_.row_splits.data();
    description_.stream = on_gpu ? GpuStream() : nullptr;

    std::shared_ptr<Pending> self = shared_from_this();
    auto* core_reference = new std::shared_ptr<Pending>(self);
    const int64_t ticket =
        epl_submit(communicator_, rank, &description_, &Pending::Allocate, &Pending::Finished, core_reference);
    // From here on `context_` may be gone: Finished may have run.
    bool cancel;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ticket_ = ticket;
      submitted_ = true;
      cancel = cancelled_ && !finished_;
    }
    if (cancel) epl_cancel(communicator_, ticket);
  }

 private:
  bool RegisterCancellation() {
    manager_ = context_->cancellation_manager();
    if (manager_ == nullptr) return true;
    token_ = manager_->get_cancellation_token();
    std::shared_ptr<Pending> self = shared_from_this();
    return manager_->RegisterCallback(token_, [self]() { self->Cancel(); });
  }

  void Cancel() {
    int64_t ticket;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
      if (finished_ || !submitted_) return;  // not submitted yet: Submit cancels after it has the ticket
      ticket = ticket_;
    }
    epl_cancel(communicator_, ticket);
  }

  void Fail(const compat::Status& status) {
    context_->SetStatus(status);
    done_();
  }

  void* GpuStream() { return compat::GpuStream(context_->op_device_context()->stream()); }

  static void* Allocate(void* core_reference, const int64_t* rows, int num_rows) {
    Pending* self = static_cast<std::shared_ptr<Pending>*>(core_reference)->get();
    void* output = nullptr;
    self->allocation_ = self->call_.allocate(rows, num_rows, &output);
    return self->allocation_.ok() ? output : nullptr;
  }

  static void Finished(void* core_reference, int code, const char* message) {
    std::unique_ptr<std::shared_ptr<Pending>> reference(static_cast<std::shared_ptr<Pending>*>(core_reference));
    std::shared_ptr<Pending> self = *reference;
    {
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->finished_ = true;
    }
    // Not DeregisterCallback: it waits for a cancellation under way, which may be the caller of this very function. Our
    // callback owns a reference and touches no context, so it may still be running.
    if (self->manager_ != nullptr) self->manager_->TryDeregisterCallback(self->token_);
    compat::Status status = self->allocation_.ok() ? ToStatus(code, message) : self->allocation_;
    if (status.ok() && self->call_.finish) status = self->call_.finish();
    if (!status.ok()) self->context_->SetStatus(status);
    tf::AsyncOpKernel::DoneCallback done = std::move(self->done_);
    self->call_.allocate = nullptr;  // they refer to the context, which ends with done()
    self->call_.finish = nullptr;
    done();
  }

  tf::OpKernelContext* const context_;
  tf::AsyncOpKernel::DoneCallback done_;
  epl_communicator* const communicator_;
  CollectiveCall call_;
  epl_collective description_{};
  compat::Status allocation_;
  tf::CancellationManager* manager_ = nullptr;
  tf::CancellationToken token_ = tf::CancellationManager::kInvalidToken;

  std::mutex mutex_;
  int64_t ticket_ = -1;  // guarded by mutex_, as are the following
  bool submitted_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
};

}  // namespace

CollectiveOp::CollectiveOp(tf::OpKernelConstruction* construction) : AsyncOpKernel(construction) {
  OP_REQUIRES_OK(construction, construction->GetAttr("communicator", &communicator_name_));
  OP_REQUIRES_OK(construction, construction->GetAttr("key", &key_));
  OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
  if (construction->HasAttr("world")) OP_REQUIRES_OK(construction, construction->GetAttr("world", &declared_world_));
  on_gpu_ = construction->device_type() == tf::DeviceType(tf::DEVICE_GPU);
}

std::string CollectiveOp::Where() const {
  return compat::Text("collective \"", key_, "\" of communicator \"", communicator_name_, "\", rank ", rank_);
}

compat::Status CollectiveOp::FindCommunicator(tf::OpKernelContext* context, epl_communicator** communicator) const {
  *communicator = epl_communicator_find(communicator_name_.c_str());
  if (*communicator == nullptr) {
    return compat::Failure(
        tf::error::FAILED_PRECONDITION, Where(),
        ": this process has no such communicator. Create it with epl.ops.communicator.Communicator(\"",
        communicator_name_, "\", ...) in this process before the session runs, and keep its job running.");
  }
  const int world = epl_communicator_size(*communicator);
  if (rank_ >= world) {
    return compat::InvalidArgument(Where(), ": the communicator has only the ranks 0 to ", world - 1, ".");
  }
  if (declared_world_ != 0 && declared_world_ != world) {
    return compat::InvalidArgument(Where(), ": the op was built for ", declared_world_,
                                   " ranks, but the communicator has ", world, ".");
  }
  const bool nccl = std::strcmp(epl_communicator_transport(*communicator), "nccl") == 0;
  if (nccl != on_gpu_) {
    return compat::InvalidArgument(
        Where(), ": the op runs on ", context->device()->name(), ", but the communicator's transport is \"",
        epl_communicator_transport(*communicator),
        "\". GPU buffers need \"nccl\", CPU buffers any other: place the op on "
        "the communicator's kind of device, or create the communicator with another transport.");
  }
  return compat::Ok();
}

void CollectiveOp::ComputeAsync(tf::OpKernelContext* context, DoneCallback done) {
  epl_communicator* communicator = nullptr;
  OP_REQUIRES_OK_ASYNC(context, FindCommunicator(context, &communicator), done);
  auto pending = std::make_shared<Pending>(context, done, communicator);
  OP_REQUIRES_OK_ASYNC(context, Prepare(context, epl_communicator_size(communicator), pending->call()), done);
  pending->Submit(rank_, key_.c_str(), on_gpu_);
}

compat::Status ForwardBuffers(tf::OpKernelContext* context, int first_input, CollectiveCall* call) {
  const int count = context->num_outputs();
  call->dtype = context->input_dtype(first_input);
  for (int i = 0; i < count; ++i) {
    // The address, not the tensor: a second reference would forbid to forward it. The executor keeps the inputs till
    // done.
    const tf::TensorShape shape = context->input(first_input + i).shape();
    const void* input = Address(context->input(first_input + i));
    tf::Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output({first_input + i}, i, shape, &output));
    call->inputs.push_back(input);
    call->outputs.push_back(Address(*output));
    call->counts.push_back(shape.num_elements());
  }
  return compat::Ok();
}

compat::Status ReadWeight(tf::OpKernelContext* context, tf::DataType dtype, CollectiveCall* call) {
  const tf::Tensor& weight = context->input(0);
  if (!tf::TensorShapeUtils::IsScalar(weight.shape())) {
    return compat::InvalidArgument("weight must be a scalar, not of shape ", weight.shape().DebugString());
  }
  call->scale = weight.scalar<double>()();
  if (!tf::DataTypeIsFloating(dtype) && call->scale != 1) {
    return compat::InvalidArgument("tensors of ", tf::DataTypeString(dtype), " cannot be weighted (weight is ",
                                   call->scale, "): cast them to a floating dtype, or give weight 1.");
  }
  return compat::Ok();
}

compat::Status ReadRows(tf::OpKernelContext* context, int input, const std::string& where, bool scalar_is_row,
                        CollectiveCall* call) {
  const tf::Tensor& tensor = context->input(input);
  const bool scalar = tensor.dims() == 0;
  if (scalar && !scalar_is_row) {
    return compat::InvalidArgument(where, ": a scalar has no rows; the tensor needs at least one dimension.");
  }
  call->row_elements = 1;
  for (int d = 1; d < tensor.dims(); ++d) call->row_elements *= tensor.dim_size(d);
  if (call->row_elements == 0) {
    return compat::InvalidArgument(where, ": the rows of a tensor of shape ", tensor.shape().DebugString(),
                                   " have no elements, so they cannot be counted.");
  }
  call->dtype = tensor.dtype();
  call->inputs.push_back(Address(tensor));
  call->counts.push_back(tensor.NumElements());
  return compat::Ok();
}

compat::Status AllocateRows(tf::OpKernelContext* context, int input, int64_t rows, void** output) {
  tf::TensorShape shape = context->input(input).shape();
  if (shape.dims() == 0) {
    shape.AddDim(rows);
  } else {
    shape.set_dim(0, rows);
  }
  tf::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &tensor));
  *output = Address(*tensor);
  return compat::Ok();
}

compat::Status WriteRows(tf::OpKernelContext* context, int index, const int64_t* rows, int num_rows) {
  tf::Tensor* tensor = nullptr;
  tf::AllocatorAttributes host;
  host.set_on_host(true);
  TF_RETURN_IF_ERROR(context->allocate_output(index, tf::TensorShape({num_rows}), &tensor, host));
  auto values = tensor->vec<compat::Int64>();
  for (int r = 0; r < num_rows; ++r) values(r) = rows[r];
  return compat::Ok();
}

compat::Status ParseReduceOp(const std::string& name, epl_reduce_op* reduce_op) {
  if (name == "sum") {
    *reduce_op = EPL_SUM;
  } else if (name == "prod") {
    *reduce_op = EPL_PROD;
  } else if (name == "min") {
    *reduce_op = EPL_MIN;
  } else if (name == "max") {
    *reduce_op = EPL_MAX;
  } else {
    return compat::InvalidArgument("reduce_op is \"", name, "\"; it must be sum, prod, min or max.");
  }
  return compat::Ok();
}

compat::Status ZeroBytes(tf::OpKernelContext* context, void* buffer, int64_t bytes) {
  if (bytes == 0) return compat::Ok();
  if (context->op_device_context() == nullptr || context->op_device_context()->stream() == nullptr) {
    std::memset(buffer, 0, bytes);
    return compat::Ok();
  }
  return compat::ZeroInOrder(context->op_device_context()->stream(), buffer, bytes);
}

}  // namespace epl
