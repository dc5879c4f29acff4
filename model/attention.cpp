#include <ATen/ATen.h>

#include "harness/core/error.h"
#include "model/functions.h"

namespace assay::ops {

std::string_view name_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::flash_cpu:
      return "_scaled_dot_product_flash_attention_for_cpu";
  }
  return "";
}

at::Tensor causal_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value) {
  const at::Tensor query_BHLD = query.transpose(1, 2);
  const at::Tensor key_BKLD = key.transpose(1, 2);
  const at::Tensor value_BKLD = value.transpose(1, 2);
  at::Tensor output_BHLD;
  switch (kernel) {
    case AttentionKernel::flash_cpu:
      output_BHLD = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query_BHLD, key_BKLD, value_BKLD,
                                                                                /*dropout_p=*/0.0, /*is_causal=*/true));
      break;
  }
  return output_BHLD.transpose(1, 2).reshape({query.size(0), query.size(1), -1});
}

}  // namespace assay::ops
