// Models made of seeded random numbers. Every value is a function of seed, tensor name and index alone, by integer
// arithmetic and a few double operations that IEEE 754 rounds in one way only: the same on every machine, in any order
// of reading.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/file.hpp"
#include "weights/checkpoint.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

constexpr std::string_view kScheme = "random:";

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
std::uint64_t hash_of(std::string_view text) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

/// splitmix64's output function (Steele, Lea, Flood 2014, with Vigna's constants); adding kGolden walks its sequence.
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
inline std::uint64_t mix(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

class RandomSource final : public Source {
 public:
  RandomSource(const ModelConfig& config, std::uint64_t seed) {
    auto specs = tensors_of(config);
    std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
    for (TensorSpec& spec : specs) {
      streams_.push_back({mix(seed + mix(hash_of(spec.name))), spec.random_mean, spec.random_std});
      infos_.push_back({std::move(spec.name), DType::f32, std::move(spec.shape)});
    }
  }

  std::span<const TensorInfo> tensors() const noexcept override { return infos_; }

  Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<float> out) const override {
    return fill(tensor.name, begin, out);
  }
  Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<double> out) const override {
    return fill(tensor.name, begin, out);
  }

 private:
  struct Stream {
    std::uint64_t key;
    double mean, std;
  };

  template <class To>
  Result<void> fill(const std::string& name, std::int64_t begin, std::span<To> out) const {
    const auto index = locate(name, begin, out.size());
    if (!index) return pass(index);
    const Stream& stream = streams_[*index];
    // The sum of four uniform 16-bit numbers: mean 4 x 65535/2, variance 4 x (2^32 - 1)/12. Close to normal
    // (Irwin-Hall), bounded by 3.5 deviations.
    constexpr std::int32_t kMean = 131070;
    constexpr double kOneOverStd = 2.6428997921303018e-05;  // sqrt(3 / (2^32 - 1))
    const double scale = stream.std * kOneOverStd, mean = stream.mean;
    const std::uint64_t first = stream.key + static_cast<std::uint64_t>(begin) * kGolden;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t bits = mix(first + i * kGolden);
      const std::uint64_t pairs = (bits & 0x0000FFFF0000FFFF) + (bits >> 16 & 0x0000FFFF0000FFFF);
      const auto sum = static_cast<std::int32_t>((pairs & 0xFFFFFFFF) + (pairs >> 32));
      out[i] = static_cast<float>(mean + scale * (sum - kMean));  // a double is read as the float that is "stored"
    }
    return {};
  }

  std::vector<TensorInfo> infos_;
  std::vector<Stream> streams_;  // of infos_
};

ModelConfig gpt2(int layers, int heads, int width) {
  ModelConfig config;
  config.family = "gpt2";
  config.layers = layers;
  config.heads = config.kv_heads = heads;
  config.head_dim = width / heads;
  config.width = width;
  config.inner = 4 * width;
  config.vocab = 50257;
  config.context = 1024;
  config.bos = config.eos = 50256;
  return config;
}

/// Small enough to try everything on; each number differs from those it could be taken for.
ModelConfig llama_tiny() {
  ModelConfig config;
  config.family = "llama";
  config.layers = 2;
  config.heads = 8;
  config.kv_heads = 4;
  config.head_dim = 8;
  config.width = 64;
  config.inner = 172;
  config.vocab = 512;
  config.context = 512;
  config.activation = Activation::silu;
  config.tied_head = false;
  return config;
}

/// Llama 3.2 1B's shape (Meta's published config.json), and the context that its rotary scaling starts from.
ModelConfig llama_1b() {
  ModelConfig config = llama_tiny();
  config.layers = 16;
  config.heads = 32;
  config.kv_heads = 8;
  config.head_dim = 64;
  config.width = 2048;
  config.inner = 8192;
  config.vocab = 128256;
  config.context = 8192;
  config.tied_head = true;
  config.bos = 128000;
  config.eos = 128001;
  config.rope = {500000, Rope::Scaling::llama3, 32, 1, 4, 8192};
  return config;
}

Result<ModelConfig> base_config(const std::string& name) {
  if (name == "gpt2") return gpt2(12, 12, 768);
  if (name == "gpt2-medium") return gpt2(24, 16, 1024);
  if (name == "llama-tiny") return llama_tiny();
  if (name == "llama-1b") return llama_1b();
  if (name == "char") {
    ModelConfig config = gpt2(4, 4, 128);
    config.vocab = 65;
    config.context = 128;
    config.tied_head = false;
    config.bos = config.eos = std::nullopt;
    return config;
  }
  const auto text = base::read_text(name, std::uint64_t{16} << 20);
  if (!text) {
    return fail(text.error().code,
                fmt::format("{}{}: not gpt2, gpt2-medium, char, llama-tiny or llama-1b, nor a config file: {}", kScheme,
                            name, text.error().message));
  }
  return parse_config(*text, name);
}

constexpr int kMost = std::numeric_limits<int>::max();

struct Overrides {
  std::uint64_t seed = 0;
  int window = 0;  // 0: as the config says
  bool inner = false, width = false, kv_heads = false;
};

/// Applies one "key=value". Errors lack the specification.
Result<void> apply(std::string_view item, ModelConfig& config, Overrides& seen) {
  const auto refuse = [](std::string why) { return fail(Code::invalid_argument, std::move(why)); };
  const auto equals = item.find('=');
  if (equals == item.npos) return refuse(fmt::format("\"{}\" is not KEY=VALUE", printable(item)));
  const std::string_view key = item.substr(0, equals), digits = item.substr(equals + 1);
  std::uint64_t value = 0;
  const auto [end, wrong] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool number = wrong == std::errc{} && end == digits.data() + digits.size();
  if (key == "seed") {
    if (!number) return refuse(fmt::format("seed \"{}\" is not an integer from 0 to 2^64 - 1", printable(digits)));
    seen.seed = value;
    return {};
  }
  int context = 0;
  const std::pair<std::string_view, int*> sizes[] = {
      {"layers", &config.layers}, {"heads", &config.heads}, {"kv_heads", &config.kv_heads}, {"width", &config.width},
      {"inner", &config.inner},   {"vocab", &config.vocab}, {"window", &seen.window},       {"ctx", &context}};
  const auto* size = std::find_if(std::begin(sizes), std::end(sizes), [&](const auto& s) { return s.first == key; });
  if (size == std::end(sizes)) {
    return refuse(
        fmt::format("unknown key \"{}\" (ctx, layers, heads, kv_heads, width, inner, vocab, window, seed are known)",
                    printable(key)));
  }
  if ((key == "kv_heads" || key == "window") && !is_llama(config)) {
    return refuse(fmt::format("{} is for Llama's families, not for {}", key, config.family));
  }
  if (!number || value < 1 || value > static_cast<std::uint64_t>(kMost)) {
    return refuse(fmt::format("{} \"{}\" is not an integer from 1 to {}", key, printable(digits), kMost));
  }
  *size->second = static_cast<int>(value);
  if (context != 0) config.context = context;
  seen.inner |= key == "inner";
  seen.width |= key == "width";
  seen.kv_heads |= key == "kv_heads";
  return {};
}

/// Lets what was not overridden follow what was, where the config `before` had the relation. Errors lack the
/// specification.
Result<void> follow(const ModelConfig& before, const Overrides& seen, ModelConfig& config) {
  if (seen.width && !seen.inner && before.inner == std::int64_t{4} * before.width) {
    if (config.width > kMost / 4) {
      return fail(Code::invalid_argument, fmt::format("width {} is too large", config.width));
    }
    config.inner = 4 * config.width;
  }
  if (!seen.kv_heads && before.kv_heads == before.heads) config.kv_heads = config.heads;
  if (before.width == std::int64_t{before.head_dim} * before.heads) {
    if (config.width % config.heads != 0) {
      return fail(Code::invalid_argument,
                  fmt::format("width {} is not a multiple of {} heads", config.width, config.heads));
    }
    config.head_dim = config.width / config.heads;
  }
  for (auto* token : {&config.bos, &config.eos}) {
    if (*token && **token >= config.vocab) token->reset();
  }
  return {};
}

}  // namespace

bool is_random(std::string_view spec) noexcept {
  return spec.starts_with(kScheme);
}

Result<RandomModel> make_random(std::string_view spec) {
  const std::string whole = printable(spec);
  if (!is_random(spec)) return fail(Code::invalid_argument, fmt::format("{}: does not begin with {}", whole, kScheme));
  spec.remove_prefix(kScheme.size());
  auto comma = spec.find(',');
  auto config = base_config(std::string(spec.substr(0, comma)));
  if (!config) return pass(config);
  const ModelConfig before = *config;
  const auto refuse = [&](const Error& error) {
    return fail(Code::invalid_argument, fmt::format("{}: {}", whole, error.message));
  };
  Overrides seen;
  while (comma != spec.npos) {
    spec.remove_prefix(comma + 1);
    comma = spec.find(',');
    if (auto ok = apply(spec.substr(0, comma), *config, seen); !ok) return refuse(ok.error());
  }
  if (auto ok = follow(before, seen, *config); !ok) return refuse(ok.error());
  // The check bounds the number of layers, which windows then get: new ones see what the last one did.
  auto windows = std::exchange(config->windows, {});
  if (auto ok = check_config(*config, whole); !ok) return fail(Code::invalid_argument, ok.error().message);
  const auto layers = static_cast<std::size_t>(config->layers);
  if (seen.window != 0) {
    windows.assign(layers, seen.window);
  } else if (!windows.empty()) {
    windows.resize(layers, windows.back());
  }
  if (std::any_of(windows.begin(), windows.end(), [](Pos w) { return w != 0; })) config->windows = std::move(windows);
  return RandomModel{*config, std::make_unique<RandomSource>(*config, seen.seed)};
}

}  // namespace stet::weights
