// Steps: begun on every cache, written, and committed or not.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kv/driver.hpp"

namespace stet::kv_test {

void Driver::append() {
  doing_ = "append";
  Appended step;
  step.order.resize(seqs_.size());
  std::iota(step.order.begin(), step.order.end(), std::size_t{0});
  for (std::size_t i = step.order.size(); i > 1; --i) {
    std::swap(step.order[i - 1], step.order[static_cast<std::size_t>(choices_.pick(0, static_cast<int>(i) - 1))]);
  }
  step.order.resize(static_cast<std::size_t>(choices_.pick(1, static_cast<int>(seqs_.size()))));
  const CacheOptions& options = subjects_[0].options;
  const auto most = static_cast<int>(options.max_step_tokens == 0 ? 40 : options.max_step_tokens);
  for (const std::size_t i : step.order) {
    int tokens = choices_.pick(1, choices_.chance(50) ? 3 : most);
    if (choices_.chance(90)) {
      tokens = std::clamp(tokens, 1, std::max(1, static_cast<int>(options.max_len - seqs_[i].length())));
    }
    step.appends.push_back({{}, std::min(tokens, most)});
  }
  Steps steps;
  if (begin(step, steps)) {
    write(step, steps);
    if (choices_.chance(10)) refuse_in_step();
    if (step.complete) check_step(step, steps);
    if (step.complete && choices_.chance(75)) finish(step, steps);
    ++done_[step.tokens.empty() || seqs_[step.order[0]].tokens.empty() ? "abandon" : doing_];
  }
  steps.clear();
  for (const std::size_t i : step.order) check(seqs_[i]);
}

// Whether every cache could begin. Bytes that were copied by those that could stay counted.
bool Driver::begin(const Appended& step, Steps& steps) {
  bool all = true;
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    Subject& subject = subjects_[i];
    std::vector<Append> appends = step.appends;
    for (std::size_t s = 0; s < appends.size(); ++s) appends[s].seq = seqs_[step.order[s]].handles[i];
    const auto code = expected(subject, step);
    std::uint64_t copied = 0;
    for (std::size_t s = 0; !code && s < appends.size(); ++s) {
      const ModelSeq& seq = seqs_[step.order[s]];
      for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
        const Extent& has = extent(seq, subject, layer);
        Pos rows = 0;
        if (subject.options.layout == Layout::growing) rows = has.kept + (seq.length() + 15) / 16 * 16 - has.first;
        if (subject.paged() && copies(subject, step, s, layer)) {
          ++done_["copy on write"];
          for (Pos pos = (seq.length() - 1) / subject.options.page_tokens * subject.options.page_tokens;
               pos < seq.length(); ++pos) {
            rows += has.has(pos) ? 1 : 0;
          }
        }
        copied += static_cast<std::uint64_t>(rows) * row_bytes_[layer];
      }
    }
    auto begun = subject.cache->begin(appends);
    if (code) {
      expect_error(subject, begun, *code, *code == Code::exhausted ? "exhausted" : "overflow");
      all = false;
      continue;
    }
    require(begun.has_value(), subject, "beginning failed");
    subject.copied += copied;
    steps.push_back(std::move(*begun));
    int row = 0;
    require(steps.back()->slices().size() == appends.size(), subject, "the number of slices differs");
    for (std::size_t s = 0; s < appends.size(); ++s) {
      const Slice& slice = steps.back()->slices()[s];
      require(slice.seq == appends[s].seq && slice.first == seqs_[step.order[s]].length() && slice.row == row &&
                  slice.tokens == appends[s].tokens,
              subject, "a slice differs");
      row += slice.tokens;
    }
  }
  return all;
}

// Writes the layers in ranges of heads; at times it stops before the end.
void Driver::write(Appended& step, Steps& steps) {
  const Slice& last = steps[0]->slices().back();
  const int rows = last.row + last.tokens;
  std::vector<std::vector<std::vector<std::byte>>> bytes(static_cast<std::size_t>(rows));
  const bool stops = choices_.chance(10);
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerSpec& layer = spec_.layers[i];
    const auto type = [&] { return chance(values_, 50) ? DType::f32 : DType::f64; };
    const Activations k(values_, type(), rows, layer.kv_heads, layer.k_dim);
    const Activations v(values_, type(), rows, layer.kv_heads, layer.v_dim);
    for (int end = layer.kv_heads; end > 0;) {
      const int begin = choices_.pick(0, end - 1);
      for (auto& one : steps) one->write(static_cast<int>(i), {begin, end}, k.rows(), v.rows());
      end = begin;
      if (stops && choices_.chance(50)) return;
    }
    for (int r = 0; r < rows; ++r) {
      scratch_[i].encode(k.rows(), v.rows(), r, bytes[static_cast<std::size_t>(r)].emplace_back());
    }
  }
  auto row = bytes.begin();
  for (const Append& append : step.appends) {
    auto& tokens = step.tokens.emplace_back();
    for (int t = 0; t < append.tokens; ++t, ++row) {
      tokens.push_back(std::make_shared<const std::vector<std::vector<std::byte>>>(std::move(*row)));
    }
  }
  step.complete = true;
}

// What a step alive forbids.
void Driver::refuse_in_step() {
  const ModelSeq& seq = any();
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    Cache& cache = *subjects_[i].cache;
    const Append append{seq.handles[i], 1};
    const auto refused = [&](const auto& result, const char* what) {
      expect_error(subjects_[i], result, Code::invalid_argument, what);
    };
    refused(cache.open(), "open in a step");
    refused(cache.close(append.seq), "close in a step");
    refused(cache.truncate(append.seq, 0), "truncate in a step");
    refused(cache.fork(append.seq, 0), "fork in a step");
    refused(cache.restore(0, {}), "restore in a step");
    refused(cache.begin({&append, 1}), "begin in a step");
  }
}

void Driver::finish(const Appended& step, Steps& steps) {
  ++done_["commit"];
  for (auto& one : steps) one->commit();
  for (std::size_t s = 0; s < step.order.size(); ++s) {
    ModelSeq& seq = seqs_[step.order[s]];
    seq.tokens.insert(seq.tokens.end(), step.tokens[s].begin(), step.tokens[s].end());
    evict(seq);
  }
}

}  // namespace stet::kv_test
