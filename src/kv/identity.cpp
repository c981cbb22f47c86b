#include "kv/identity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "kv/snapshot_tables.hpp"

namespace stet::kv {
namespace {

struct Setting {
  std::string_view key, value;
};

std::vector<Setting> settings(std::string_view text) {
  std::vector<Setting> all;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t equals = std::min(line.find('='), line.size());
    all.push_back({line.substr(0, equals), line.substr(std::min(line.size(), equals + 1))});
  }
  return all;
}

const Setting* find(const std::vector<Setting>& in, std::string_view key) {
  const auto at = std::find_if(in.begin(), in.end(), [&](const Setting& s) { return s.key == key; });
  return at == in.end() ? nullptr : &*at;
}

// A file may hold very long values.
std::string shown(const Setting* setting) {
  constexpr std::size_t kMost = 80;
  if (setting == nullptr) return "not given";
  const std::string_view value = setting->value;
  return value.size() <= kMost ? std::string(value) : fmt::format("{}...", value.substr(0, kMost));
}

Result<void> check_configs(std::string_view file, std::string_view model, std::string_view where) {
  const auto theirs = settings(file), ours = settings(model);
  std::string first;
  int differences = 0;
  const auto compare = [&](std::string_view key) {
    const Setting *a = find(theirs, key), *b = find(ours, key);
    if (a != nullptr && b != nullptr && a->value == b->value) return;
    if (differences++ == 0) {
      first = fmt::format("{} is {} in the file, {} in the model", key.substr(0, 80), shown(a), shown(b));
    }
  };
  for (const Setting& setting : ours) compare(setting.key);
  for (const Setting& setting : theirs) {
    if (find(ours, setting.key) == nullptr) compare(setting.key);
  }
  if (differences == 0) first = "the config's text differs in its order";
  const std::string more =
      differences > 1 ? fmt::format(" ({} more setting{})", differences - 1, differences == 2 ? " differs" : "s differ")
                      : "";
  return fail(Code::invalid_argument, fmt::format("{}: {}{}", where, first, more));
}

}  // namespace

Result<void> check_same(const Identity& file, const Identity& model, std::string_view where) {
  if (file.numerics != model.numerics) {
    return fail(Code::invalid_argument, fmt::format("{}: numerics version is {} in the file, {} in this build", where,
                                                    file.numerics, model.numerics));
  }
  if (file.config != model.config) return check_configs(file.config, model.config, where);
  if (!(file.weights == model.weights)) {
    return fail(Code::invalid_argument,
                fmt::format("{}: the model's weights differ: digest {} in the file, {} in the model", where,
                            to_text(file.weights), to_text(model.weights)));
  }
  return {};
}

Result<void> check_layers(const CacheSpec& file, const CacheSpec& cache, bool codecs, std::string_view where) {
  if (file.layers.size() != cache.layers.size()) {
    return fail(Code::invalid_argument, fmt::format("{}: {} layers in the file, {} in the cache", where,
                                                    file.layers.size(), cache.layers.size()));
  }
  for (std::size_t i = 0; i < file.layers.size(); ++i) {
    const LayerSpec &a = file.layers[i], &b = cache.layers[i];
    const auto differ = [&](const char* what, const auto& theirs, const auto& ours, const char* hint = "") {
      return fail(Code::invalid_argument, fmt::format("{}: layer {}: {} {} in the file, {} in the cache{}", where, i,
                                                      what, theirs, ours, hint));
    };
    if (a.kv_heads != b.kv_heads) return differ("kv_heads is", a.kv_heads, b.kv_heads);
    if (a.k_dim != b.k_dim) return differ("k_dim is", a.k_dim, b.k_dim);
    if (a.v_dim != b.v_dim) return differ("v_dim is", a.v_dim, b.v_dim);
    if (a.span.window != b.span.window) return differ("window is", a.span.window, b.span.window);
    if (a.span.sinks != b.span.sinks) return differ("sinks is", a.span.sinks, b.span.sinks);
    const char* const hint = "; re-encoding them loses precision and must be asked for";
    if (codecs && a.k != b.k) return differ("keys are", name_of(a.k), name_of(b.k), hint);
    if (codecs && a.v != b.v) return differ("values are", name_of(a.v), name_of(b.v), hint);
  }
  return {};
}

base::Digest key_of(const Identity& identity, const CacheSpec& layers, std::string_view salt) {
  // The salt last: it is the only part without a length before it.
  std::vector<std::byte> bytes = identity_bytes(identity, layers);
  const auto tail = std::as_bytes(std::span(salt));
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return base::digest_of(bytes);
}

}  // namespace stet::kv
