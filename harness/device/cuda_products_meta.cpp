#include <ATen/ATen.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/addmv_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>

#include "harness/device/meta_kernels.h"
#include "harness/device/meta_target.h"

// Matrix products. LibTorch's Meta kernels make the results; these add the workspaces that cuBLAS keeps. The products
// of 16-bit factors with fp32 results exist on CUDA only.

namespace assay {
namespace {

using at::Scalar;
using at::Tensor;

// When CUDA gives the sum with a vector to cublasLt: isInputCompliesAddmmCudaLt in aten/src/ATen/native/cuda/Blas.cpp.
bool is_linear_with_bias(const Tensor& self, const Tensor& right) {
  return self.dim() == 1 && self.is_contiguous() && self.size(0) == right.size(1) && right.size(0) > 1 &&
         right.size(1) > 1;
}

Tensor meta_mm(const Tensor& left, const Tensor& right) {
  Tensor result = at::meta::mm(left, right);
  take_matrix_workspace(false);
  return result;
}

Tensor& meta_mm_out(const Tensor& left, const Tensor& right, Tensor& out) {
  at::meta::mm_outf(left, right, out);
  take_matrix_workspace(false);
  return out;
}

Tensor meta_mm_dtype(const Tensor& left, const Tensor& right, at::ScalarType dtype) {
  Tensor result = at::empty({left.size(0), right.size(1)}, left.options().dtype(dtype));
  take_matrix_workspace(false);
  return result;
}

Tensor& meta_mm_dtype_out(const Tensor& /*left*/, const Tensor& /*right*/, at::ScalarType /*dtype*/, Tensor& out) {
  take_matrix_workspace(false);
  return out;
}

Tensor meta_addmm(const Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                  const Scalar& alpha) {
  Tensor result = at::meta::addmm(self, left, right, beta, alpha);
  take_matrix_workspace(is_linear_with_bias(self, right));
  return result;
}

Tensor& meta_addmm_out(const Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                       const Scalar& alpha, Tensor& out) {
  at::meta::addmm_outf(self, left, right, beta, alpha, out);
  take_matrix_workspace(is_linear_with_bias(self, right));
  return out;
}

Tensor& meta_addmm_in_place(Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                            const Scalar& alpha) {
  at::meta::addmm_(self, left, right, beta, alpha);
  take_matrix_workspace(false);
  return self;
}

Tensor meta_addmm_dtype(const Tensor& /*self*/, const Tensor& left, const Tensor& right, at::ScalarType dtype,
                        const Scalar& /*beta*/, const Scalar& /*alpha*/) {
  return meta_mm_dtype(left, right, dtype);
}

Tensor& meta_addmm_dtype_out(const Tensor& /*self*/, const Tensor& /*left*/, const Tensor& /*right*/,
                             at::ScalarType /*dtype*/, const Scalar& /*beta*/, const Scalar& /*alpha*/, Tensor& out) {
  take_matrix_workspace(false);
  return out;
}

Tensor& meta_addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                       const Scalar& alpha, Tensor& out) {
  at::meta::addmv_outf(self, matrix, vector, beta, alpha, out);
  take_matrix_workspace(false);
  return out;
}

Tensor& meta_addmv_in_place(Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                            const Scalar& alpha) {
  at::meta::addmv_(self, matrix, vector, beta, alpha);
  take_matrix_workspace(false);
  return self;
}

Tensor meta_bmm(const Tensor& left, const Tensor& right) {
  Tensor result = at::meta::bmm(left, right);
  take_matrix_workspace(false);
  return result;
}

Tensor& meta_bmm_out(const Tensor& left, const Tensor& right, Tensor& out) {
  at::meta::bmm_outf(left, right, out);
  take_matrix_workspace(false);
  return out;
}

Tensor meta_baddbmm(const Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                    const Scalar& alpha) {
  Tensor result = at::meta::baddbmm(self, left, right, beta, alpha);
  take_matrix_workspace(false);
  return result;
}

}  // namespace

void register_cuda_products(torch::Library& library) {
  library.impl("mm", meta_mm);
  library.impl("mm.out", meta_mm_out);
  library.impl("mm.dtype", meta_mm_dtype);
  library.impl("mm.dtype_out", meta_mm_dtype_out);
  library.impl("addmm", meta_addmm);
  library.impl("addmm.out", meta_addmm_out);
  library.impl("addmm_", meta_addmm_in_place);
  library.impl("addmm.dtype", meta_addmm_dtype);
  library.impl("addmm.dtype_out", meta_addmm_dtype_out);
  library.impl("addmv.out", meta_addmv_out);
  library.impl("addmv_", meta_addmv_in_place);
  library.impl("bmm", meta_bmm);
  library.impl("bmm.out", meta_bmm_out);
  library.impl("baddbmm", meta_baddbmm);
}
}  // namespace assay
