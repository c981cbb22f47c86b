// What a model is, in numbers: the canonical form of a config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "stet/types.hpp"

namespace stet {

/// gelu_tanh: GELU's tanh approximation (Hendrycks and Gimpel 2016, section 2); gelu_erf: the exact one.
enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu };

/// "gelu_tanh", "gelu_erf" or "relu".
const char* name_of(Activation activation) noexcept;

/// The activation that a config.json calls `name`: gelu_new and gelu_pytorch_tanh are gelu_tanh, gelu is gelu_erf. None
/// for a name that Stet does not compute.
std::optional<Activation> activation_named(std::string_view name) noexcept;

struct ModelConfig {
  std::string family;  // "gpt2"
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int width = 0, inner = 0, vocab = 0;
  Pos context = 0;
  Activation activation = Activation::gelu_tanh;
  double norm_epsilon = 1e-5;
  bool scale_attention = true;            // scores x 1/sqrt(head_dim)
  bool scale_attention_by_layer = false;  // scores x 1/(layer + 1)
  bool tied_head = true;                  // the head shares the token embedding's matrix
  std::optional<TokenId> bos, eos;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

}  // namespace stet
