#include "lab/break_play.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "sample/sampler.hpp"

namespace stet::lab {
namespace {

Result<TokenId> choose(const model::Model& model, const std::byte* logits, const Ids& history,
                       const SamplingParams& sampling, std::uint64_t sequence, Pos position) {
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  if (model.dtype() == DType::f64) {
    return sample::sample(std::span(reinterpret_cast<const double*>(logits), vocab), history, sampling, sequence,
                          position);
  }
  return sample::sample(std::span(reinterpret_cast<const float*>(logits), vocab), history, sampling, sequence,
                        position);
}

class Player {
 public:
  Player(const model::Model& model, const Play& play, Drive drive)
      : model_(model),
        play_(play),
        drive_(std::move(drive)),
        row_bytes_(static_cast<std::size_t>(model.config().vocab) * size_of(model.dtype())) {
    played_.ids.resize(play.prompts.size());
    played_.logits.resize(play.prompts.size());
  }

  Result<Played> run(const std::vector<Ids>* forced) {
    for (int t = 0; t < play_.steps; ++t) {
      const auto start = std::chrono::steady_clock::now();
      if (auto ok = t == 0 ? begin() : go_on(); !ok) return pass(ok);
      played_.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      for (std::size_t i = 0; i < tokens_.size(); ++i) {
        const auto at = static_cast<std::size_t>(t) * row_bytes_;
        auto id = choose(model_, played_.logits[i].data() + at, tokens_[i], play_.sampling, i,
                         static_cast<Pos>(tokens_[i].size()));
        if (!id) return pass(id);
        played_.ids[i].push_back(*id);
        tokens_[i].push_back(forced != nullptr ? (*forced)[i][static_cast<std::size_t>(t)] : *id);
      }
    }
    played_.usage = drive_.cache().usage();
    const auto view = drive_.cache().peek(seqs_.front(), 0);
    if (!view) return pass(view);
    played_.evicted = view->first - view->kept;
    return std::move(played_);
  }

 private:
  // The prompts, in one step.
  Result<void> begin() {
    std::size_t longest = 0;
    for (const Ids& prompt : play_.prompts) longest = std::max(longest, prompt.size());
    std::vector<Ids> parts;
    for (const Ids& prompt : play_.prompts) {
      auto seq = drive_.cache().open();
      if (!seq) return pass(seq);
      seqs_.push_back(*seq);
      tokens_.push_back(prompt);
      parts.push_back(play_.padding ? fill_up(*play_.padding, play_.pad, prompt, static_cast<Pos>(longest)) : prompt);
    }
    if (play_.stored > 0) {
      if (auto ok = find_stored(parts.front()); !ok) return ok;
    }
    return step(parts);
  }

  // An earlier request has read the beginning of the prompt; this one forks all of it but the last token.
  Result<void> find_stored(Ids& prompt) {
    const Ids before(prompt.begin(), prompt.begin() + play_.stored);
    if (auto ok = drive_.feed(seqs_.front(), before, play_.stored, play_.stored, nullptr); !ok) return ok;
    auto fork = drive_.cache().fork(seqs_.front(), std::min(play_.stored, static_cast<Pos>(prompt.size()) - 1));
    if (!fork) return pass(fork);
    seqs_.front() = *fork;
    const auto length = drive_.cache().length(*fork);
    if (!length) return pass(length);
    prompt.erase(prompt.begin(), prompt.begin() + *length);
    return {};
  }

  // The newest token of each sequence, whichever way.
  Result<void> go_on() {
    std::vector<Ids> parts;
    for (const Ids& ids : tokens_) parts.push_back({ids.back()});
    const auto all = static_cast<Pos>(tokens_.front().size());
    const bool past = play_.limit > 0 && all > play_.limit;
    if (play_.recompute || past) {
      if (auto ok = drive_.cache().truncate(seqs_.front(), 0); !ok) return ok;
      parts.front() = past ? Ids(tokens_.front().end() - play_.limit, tokens_.front().end()) : tokens_.front();
    } else if (!play_.drafts.empty()) {
      if (auto ok = take_back_drafts(); !ok) return ok;
    }
    return step(parts);
  }

  Result<void> take_back_drafts() {
    const auto length = drive_.cache().length(seqs_.front());
    if (!length) return pass(length);
    const Append one{seqs_.front(), static_cast<int>(play_.drafts.size())};
    if (auto ok = drive_.append({&one, 1}, play_.drafts, {}, nullptr); !ok) return ok;
    return drive_.cache().truncate(seqs_.front(), *length);
  }

  // The logits behind each part's last row are those of the next token.
  Result<void> step(const std::vector<Ids>& parts) {
    std::vector<Append> appends;
    Ids ids;
    std::vector<int> rows;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      appends.push_back({seqs_[i], static_cast<int>(parts[i].size())});
      ids.insert(ids.end(), parts[i].begin(), parts[i].end());
      rows.push_back(static_cast<int>(ids.size()) - 1);
    }
    std::vector<std::byte> out;
    if (auto ok = drive_.append(appends, ids, rows, &out); !ok) return ok;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto from = out.begin() + static_cast<std::ptrdiff_t>(i * row_bytes_);
      played_.logits[i].insert(played_.logits[i].end(), from, from + static_cast<std::ptrdiff_t>(row_bytes_));
    }
    return {};
  }

  const model::Model& model_;
  const Play& play_;
  Drive drive_;
  std::size_t row_bytes_;
  std::vector<Seq> seqs_;
  std::vector<Ids> tokens_;
  Played played_;
};

template <class T>
double largest_distance(const std::byte* a, const std::byte* b, std::size_t n) {
  double largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    T x, y;
    std::memcpy(&x, a + i * sizeof x, sizeof x);
    std::memcpy(&y, b + i * sizeof y, sizeof y);
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(static_cast<double>(x) - static_cast<double>(y)));
  }
  return largest;
}

}  // namespace

Result<Played> play(const model::Model& model, const Play& play, const KeepGoing& go, const std::vector<Ids>* forced) {
  Drive::Size size;
  for (const Ids& prompt : play.prompts) size.max_len = std::max(size.max_len, static_cast<Pos>(prompt.size()));
  size.max_len += play.steps + static_cast<Pos>(play.drafts.size());
  if (play.limit > 0) size.max_len = play.limit;
  size.max_step = play.max_step > 0 ? play.max_step : size.max_len;
  size.seqs = static_cast<int>(play.prompts.size()) + (play.stored > 0 ? 1 : 0);
  Conditions conditions;
  conditions.cache = play.cache;
  conditions.wrap = play.wrap;
  if (!play.poison) conditions.poison = std::nullopt;
  conditions.threads = play.threads > 0 ? play.threads : base::available_cpus();
  auto drive = Drive::make(model, conditions, size);
  if (!drive) return pass(drive);
  drive->keep_going = go;
  return Player(model, play, std::move(*drive)).run(forced);
}

std::vector<double> distances(const model::Model& model, const Played& a, const Played& b) {
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  const std::size_t bytes = vocab * size_of(model.dtype());
  std::vector<double> all;
  for (std::size_t at = 0; at + bytes <= a.logits.back().size(); at += bytes) {
    const std::byte *x = a.logits.back().data() + at, *y = b.logits.back().data() + at;
    all.push_back(model.dtype() == DType::f64 ? largest_distance<double>(x, y, vocab)
                                              : largest_distance<float>(x, y, vocab));
  }
  return all;
}

double repetition(const Ids& ids) {
  constexpr std::size_t kGram = 4;
  if (ids.size() < kGram + 1) return 0;
  std::set<std::array<TokenId, kGram>> seen;
  std::size_t again = 0, all = 0;
  for (std::size_t i = 0; i + kGram <= ids.size(); ++i, ++all) {
    std::array<TokenId, kGram> gram{};
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(i), kGram, gram.begin());
    if (!seen.insert(gram).second) ++again;
  }
  return static_cast<double>(again) / static_cast<double>(all);
}

}  // namespace stet::lab
