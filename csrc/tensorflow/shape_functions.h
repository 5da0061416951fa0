// Shape functions that several collective ops share.

#ifndef EPL_TENSORFLOW_SHAPE_FUNCTIONS_H_
#define EPL_TENSORFLOW_SHAPE_FUNCTIONS_H_

#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/tf_compat.h"

namespace epl {

// Inputs [first_input, first_input + N) keep their shapes. With first_input 1, input 0 is the scalar weight.
inline compat::Status SameShapes(tensorflow::shape_inference::InferenceContext* context, int first_input) {
  tensorflow::shape_inference::ShapeHandle unused;
  if (first_input == 1) TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(first_input + i));
  return compat::Ok();
}

inline compat::Status World(tensorflow::shape_inference::InferenceContext* context, int* world) {
  int rank;
  TF_RETURN_IF_ERROR(context->GetAttr("world", world));
  TF_RETURN_IF_ERROR(context->GetAttr("rank", &rank));
  if (rank >= *world) {
    return compat::InvalidArgument("rank ", rank, " is not one of the ", *world, " ranks");
  }
  return compat::Ok();
}

// The shape of input `index` with another first dimension; a scalar becomes a vector.
inline compat::Status WithRows(tensorflow::shape_inference::InferenceContext* context, int index,
                               tensorflow::shape_inference::DimensionHandle rows,
                               tensorflow::shape_inference::ShapeHandle* result) {
  const tensorflow::shape_inference::ShapeHandle input = context->input(index);
  if (!context->RankKnown(input)) {
    *result = context->UnknownShape();
    return compat::Ok();
  }
  if (context->Rank(input) == 0) {
    *result = context->Vector(rows);
    return compat::Ok();
  }
  return context->ReplaceDim(input, 0, rows, result);
}

}  // namespace epl

#endif  // EPL_TENSORFLOW_SHAPE_FUNCTIONS_H_
