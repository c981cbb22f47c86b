// The tensors of a GPT-2 checkpoint: what they are called, what shape they have.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "weights/checkpoint.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";

/// "h.N.attn.bias" and "h.N.attn.masked_bias" of one of the layers: constants of the causal mask that old versions of
/// transformers saved.
bool is_mask_buffer(std::string_view name, int layers) {
  if (!name.starts_with("h.")) return false;
  name.remove_prefix(2);
  const auto dot = name.find('.');
  if (dot == name.npos) return false;
  const std::string_view layer = name.substr(0, dot), rest = name.substr(dot);
  if (rest != ".attn.bias" && rest != ".attn.masked_bias") return false;
  int number = 0;
  for (const char c : layer) {
    if (c < '0' || c > '9' || number >= layers) return false;
    number = 10 * number + (c - '0');
  }
  return number < layers && std::to_string(number) == layer;
}

/// A list for an error: the first few items and how many more.
class Few {
 public:
  void add(std::string item) {
    if (++count_ <= kShown) text_ += (text_.empty() ? "" : ", ") + std::move(item);
  }
  bool empty() const noexcept { return count_ == 0; }
  std::string text() const { return count_ > kShown ? fmt::format("{} and {} more", text_, count_ - kShown) : text_; }

 private:
  static constexpr int kShown = 4;
  std::string text_;
  int count_ = 0;
};

struct Faults {
  Few missing, misshapen, unreadable, unexpected;
};

/// Compares one tensor that is needed (or, a tied head, allowed) with what the source has under `name`.
void compare(const Source& source, const std::string& name, const std::vector<std::int64_t>& shape, Faults& faults) {
  const TensorInfo* tensor = source.find(name);
  if (tensor == nullptr) {
    faults.missing.add(name);
  } else if (tensor->shape != shape) {
    faults.misshapen.add(fmt::format("{} (is {}, has to be {})", name, to_string(tensor->shape), to_string(shape)));
  } else if (!tensor->readable()) {
    faults.unreadable.add(fmt::format("{} ({})", name, tensor->other_type));
  }
}

std::string describe(const Faults& faults) {
  std::string text;
  const std::pair<const char*, const Few*> kinds[] = {{"missing tensors: ", &faults.missing},
                                                      {"wrong shapes: ", &faults.misshapen},
                                                      {"types that cannot be read as weights: ", &faults.unreadable},
                                                      {"unexpected tensors: ", &faults.unexpected}};
  for (const auto& [title, few] : kinds) {
    if (!few->empty()) text += (text.empty() ? "" : "; ") + (title + few->text());
  }
  return text;
}

}  // namespace

std::vector<TensorSpec> gpt2_tensors(const ModelConfig& config) {
  const std::int64_t C = config.width, F = config.inner;
  // Random values: at width 768 the deviations are those of 0.02 to 0.06 that let attention differ from a plain mean
  // and logits from each other; other widths keep the deviation of the products.
  const auto matrix = [](double std_at_768, std::int64_t in) {
    return std_at_768 * std::sqrt(768.0 / static_cast<double>(in));
  };
  std::vector<TensorSpec> all;
  all.reserve(static_cast<std::size_t>(config.layers) * 12 + 5);
  const auto add = [&](std::string name, std::vector<std::int64_t> shape, double std, double mean = 0) {
    all.push_back({std::move(name), std::move(shape), mean, std});
  };
  add("wte.weight", {config.vocab, C}, matrix(0.02, C));
  add("wpe.weight", {config.context, C}, matrix(0.01, C));
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string h = fmt::format("h.{}.", layer);
    add(h + "ln_1.weight", {C}, 0.1, 1);
    add(h + "ln_1.bias", {C}, 0.02);
    add(h + "attn.c_attn.weight", {C, 3 * C}, matrix(0.06, C));
    add(h + "attn.c_attn.bias", {3 * C}, 0.02);
    add(h + "attn.c_proj.weight", {C, C}, matrix(0.03, C));
    add(h + "attn.c_proj.bias", {C}, 0.02);
    add(h + "ln_2.weight", {C}, 0.1, 1);
    add(h + "ln_2.bias", {C}, 0.02);
    add(h + "mlp.c_fc.weight", {C, F}, matrix(0.05, C));
    add(h + "mlp.c_fc.bias", {F}, 0.02);
    add(h + "mlp.c_proj.weight", {F, C}, matrix(0.06, F));
    add(h + "mlp.c_proj.bias", {C}, 0.02);
  }
  add("ln_f.weight", {C}, 0.1, 1);
  add("ln_f.bias", {C}, 0.02);
  if (!config.tied_head) add(std::string(kHead), {config.vocab, C}, matrix(0.02, C));
  return all;
}

Result<std::string> check_gpt2(const Source& source, const ModelConfig& config, const std::string& where) {
  const auto all = source.tensors();
  const bool prefixed =
      std::any_of(all.begin(), all.end(), [](const TensorInfo& t) { return t.name.starts_with(kPrefix); });
  const std::string prefix(prefixed ? kPrefix : "");
  Faults faults;
  std::vector<std::string> known;
  for (const TensorSpec& spec : gpt2_tensors(config)) {
    known.push_back(spec.name == kHead ? spec.name : prefix + spec.name);
    compare(source, known.back(), spec.shape, faults);
  }
  if (config.tied_head && source.find(kHead) != nullptr) {
    known.emplace_back(kHead);
    compare(source, known.back(), {config.vocab, config.width}, faults);
  }
  std::sort(known.begin(), known.end());
  for (const TensorInfo& tensor : all) {
    std::string_view name = tensor.name;
    if (std::binary_search(known.begin(), known.end(), name)) continue;
    if (prefixed && name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    if (!is_mask_buffer(name, config.layers)) faults.unexpected.add(printable(tensor.name));
  }
  if (const std::string text = describe(faults); !text.empty()) {
    return fail(Code::corrupt, fmt::format("{}: {}", where, text));
  }
  return prefix;
}

}  // namespace stet::weights
