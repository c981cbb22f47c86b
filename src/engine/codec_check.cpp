#include "engine/codec_check.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/buffer.hpp"
#include "sample/sampler.hpp"
#include "stet/cache.hpp"

namespace stet::engine {
namespace {

constexpr std::size_t kMost = 128, kLeast = 16, kContinued = 32;
constexpr int kRows = 16;  // whose logits are there at a time

// The most likely token after each of the ids. With `continued`, ids grow by their own continuation up to so many.
Result<std::vector<TokenId>> tops(const Bench& bench, const CacheSpec& spec, std::vector<TokenId>& ids, int chunk,
                                  std::size_t continued) {
  const auto vocab = static_cast<std::size_t>(bench.model->config().vocab);
  CacheOptions options;
  options.max_len = static_cast<Pos>(std::max(ids.size(), continued));
  auto cache = make_cache(spec, options);
  if (!cache) return pass(cache);
  auto seq = (*cache)->open();
  if (!seq) return pass(seq);
  const auto most = static_cast<std::size_t>(std::min(chunk, kRows));
  auto logits = base::Buffer::allocate(most * vocab * size_of(bench.model->dtype()));
  if (!logits) return pass(logits);
  std::vector<TokenId> found;
  while (found.size() < ids.size()) {
    const auto some = std::span(ids).subspan(found.size(), std::min(most, ids.size() - found.size()));
    std::vector<int> rows(some.size());
    std::iota(rows.begin(), rows.end(), 0);
    if (auto ok = append(bench, **cache, *seq, some, {rows, logits->data()}); !ok) return pass(ok);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::size_t at = r * vocab;
      found.push_back(bench.model->dtype() == DType::f64
                          ? sample::most_likely(std::span<const double>(logits->as<double>() + at, vocab))
                          : sample::most_likely(std::span<const float>(logits->as<float>() + at, vocab)));
    }
    if (found.size() == ids.size() && ids.size() < continued) ids.push_back(found.back());
  }
  return found;
}

}  // namespace

Result<CodecCheck> check_codecs(const Bench& bench, const CacheSpec& plain, const CacheSpec& spec,
                                std::span<const TokenId> given, int chunk) {
  const auto context = static_cast<std::size_t>(bench.model->config().context);
  const std::size_t most = std::min({given.size(), kMost, context});
  std::vector<TokenId> ids(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(most));
  auto expected = tops(bench, plain, ids, chunk, ids.size() < kLeast ? std::min(kContinued, context) : ids.size());
  if (!expected) return pass(expected);
  auto found = tops(bench, spec, ids, chunk, ids.size());
  if (!found) return pass(found);
  CodecCheck check;
  check.positions = static_cast<int>(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) check.same += (*expected)[i] == (*found)[i] ? 1 : 0;
  return check;
}

}  // namespace stet::engine
