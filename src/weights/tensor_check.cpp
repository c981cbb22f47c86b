#include "weights/tensor_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "weights/printable.hpp"

namespace stet::weights {
namespace {

/// One of naming.layer_buffers, of one of the layers, or of naming.buffers.
bool is_buffer(std::string_view name, const Naming& naming, int layers) {
  const auto has = [](const auto& list, std::string_view item) {
    return std::find(list.begin(), list.end(), item) != list.end();
  };
  if (has(naming.buffers, name)) return true;
  if (!name.starts_with(naming.layer)) return false;
  name.remove_prefix(naming.layer.size());
  const auto dot = name.find('.');
  if (dot == name.npos || !has(naming.layer_buffers, name.substr(dot))) return false;
  const std::string_view layer = name.substr(0, dot);
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

Result<std::string> compare_tensors(const Source& source, const ModelConfig& config,
                                    const std::vector<TensorSpec>& needed, const Naming& naming,
                                    const std::string& where) {
  const auto all = source.tensors();
  const bool prefixed =
      std::any_of(all.begin(), all.end(), [&](const TensorInfo& t) { return t.name.starts_with(naming.prefix); });
  const std::string prefix(prefixed ? naming.prefix : "");
  Faults faults;
  std::vector<std::string> known;
  for (const TensorSpec& spec : needed) {
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
    if (prefixed && name.starts_with(naming.prefix)) name.remove_prefix(prefix.size());
    if (!is_buffer(name, naming, config.layers)) faults.unexpected.add(printable(tensor.name));
  }
  if (const std::string text = describe(faults); !text.empty()) {
    return fail(Code::corrupt, fmt::format("{}: {}", where, text));
  }
  return prefix;
}

}  // namespace stet::weights
