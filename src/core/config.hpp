// What a model is, in numbers: the canonical form of a config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/types.hpp"

namespace stet {

/// gelu_tanh: GELU's tanh approximation (Hendrycks and Gimpel 2016, section 2); gelu_erf: the exact one; silu: x
/// sigmoid(x) (ibid.), which Llama's MLP multiplies with a second product (SwiGLU; Shazeer 2020).
enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu, silu };

/// "gelu_tanh", "gelu_erf", "relu" or "silu".
const char* name_of(Activation activation) noexcept;

/// The activation that a config.json calls `name`: gelu_new and gelu_pytorch_tanh are gelu_tanh, gelu is gelu_erf,
/// swish is silu. None for a name that Stet does not compute.
std::optional<Activation> activation_named(std::string_view name) noexcept;

/// Rotary positions (Su et al. 2021) in the half-split form: component i turns with i + head_dim / 2 by position x
/// theta^(-2 i / head_dim).
struct Rope {
  double theta = 10000;
  enum class Scaling : std::uint8_t { none, linear, llama3 } scaling = Scaling::none;
  // linear: frequencies / factor. llama3: long wavelengths / factor, short ones as they are, smooth between them.
  double factor = 1, low_frequency = 1, high_frequency = 4;
  Pos original_context = 8192;

  friend bool operator==(const Rope&, const Rope&) = default;
};

struct ModelConfig {
  std::string family;  // "gpt2", or "llama", "mistral" or "qwen2", which are one architecture
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int width = 0, inner = 0, vocab = 0;
  Pos context = 0;
  Activation activation = Activation::gelu_tanh;
  double norm_epsilon = 1e-5;
  bool scale_attention = true;            // scores x 1/sqrt(head_dim)
  bool scale_attention_by_layer = false;  // scores x 1/(layer + 1)
  bool tied_head = true;                  // the head shares the token embedding's matrix
  std::optional<TokenId> bos, eos;

  // Of Llama's architecture alone.
  Rope rope;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  std::vector<Pos> windows;  // of each layer: positions that a query sees, itself counted; 0 or no entry: all

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

}  // namespace stet
