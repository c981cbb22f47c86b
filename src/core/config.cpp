#include "core/config.hpp"

namespace stet {

const char* name_of(Activation activation) noexcept {
  switch (activation) {
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::gelu_erf:
      return "gelu_erf";
    case Activation::silu:
      return "silu";
    case Activation::relu:
      break;
  }
  return "relu";
}

std::optional<Activation> activation_named(std::string_view name) noexcept {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu_erf;
  if (name == "relu") return Activation::relu;
  if (name == "silu" || name == "swish") return Activation::silu;
  return std::nullopt;
}

}  // namespace stet
