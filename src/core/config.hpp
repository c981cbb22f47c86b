// What a model is, in numbers: the canonical form of a config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stet/types.hpp"

namespace stet {

enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu };

struct ModelConfig {
  std::string family;  // "gpt2"
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int width = 0, inner = 0, vocab = 0;
  Pos context = 0;
  Activation activation = Activation::gelu_tanh;
  double norm_epsilon = 1e-5;
  bool scale_attention = true;          // scores x 1/sqrt(head_dim)
  bool scale_attention_by_layer = false;  // scores x 1/(layer + 1)
  bool tied_head = true;                // the head shares the token embedding's matrix
  std::optional<TokenId> bos, eos;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

}  // namespace stet
