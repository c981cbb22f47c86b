// Comparing what a checkpoint has with what its config needs, for every family.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weights/checkpoint.hpp"

namespace stet::weights {

/// The head's matrix; in every family's files it stands beside the model, without a prefix.
inline constexpr std::string_view kHead = "lm_head.weight";

/// How a family's files name things beside the tensors that the model needs.
struct Naming {
  std::string_view prefix;  // before every name but the head's, or before none
  std::string_view layer;   // before a layer's number: "h."
  /// Constants that some versions saved: a layer's, as what follows its number (".attn.bias"), and the model's.
  std::vector<std::string_view> layer_buffers, buffers;
};

/// checkpoint.hpp says under check_gpt2 what is compared. `needed` are the tensors of `config`.
Result<std::string> compare_tensors(const Source& source, const ModelConfig& config,
                                    const std::vector<TensorSpec>& needed, const Naming& naming,
                                    const std::string& where);

}  // namespace stet::weights
