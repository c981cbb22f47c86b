// Random operations on a cache and on a simple model of it, a vector of rows for each sequence and layer. After each
// one the cache must hold the model's rows bit for bit, and say of itself what the model says.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "kv/support.hpp"

namespace stet::kv_test {
namespace {

// One thread gives the thread sanitizer little to see, at thirty times the cost.
#if defined(__SANITIZE_THREAD__)
constexpr int kOperations = 500;
#else
constexpr int kOperations = 4000;
#endif

struct ModelSeq {
  Seq handle;
  Pos length = 0;
  std::vector<Stored> layers;
};

class Driver {
 public:
  explicit Driver(std::uint64_t seed) : random_(seed) {
    spec_ = random_spec(random_, 3, 3, 6);
    options_.max_len = pick(random_, 10, 110);
    options_.max_seqs = pick(random_, 1, 4);
    options_.retain = Retain::all;
    if (seed % 2 == 0) options_.poison = std::numeric_limits<double>::quiet_NaN();
    auto plan = plan_cache(spec_, options_);
    auto cache = make_cache(spec_, options_);
    if (!plan || !cache) throw std::runtime_error("the cache was refused");
    plan_ = *plan;
    cache_ = std::move(*cache);
  }

  void run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      operate();
      check_usage();
      if (i % 32 == 0) check_all();
    }
    if (testing::Test::HasFailure()) return;
    check_all();
    // What no sequence uses must be untouched too.
    while (static_cast<int>(seqs_.size()) < options_.max_seqs) open();
    check_all();
  }

  const std::map<std::string, int>& done() const { return done_; }

 private:
  void operate() {
    const int die = pick(random_, 1, 100);
    if (seqs_.empty() || die <= 10) return open();
    if (die <= 16) return close();
    if (die <= 28) return truncate();
    if (die <= 85) return append();
    if (die <= 92) return stale();
    return bad_step();
  }

  ModelSeq& any() { return seqs_[random_() % seqs_.size()]; }

  template <class T>
  void expect_error(const Result<T>& result, Code code, const char* what) {
    ++done_[what];
    ASSERT_FALSE(result) << what;
    EXPECT_EQ(result.error().code, code) << what << ": " << result.error().message;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  }

  void open() {
    auto seq = cache_->open();
    if (static_cast<int>(seqs_.size()) == options_.max_seqs) return expect_error(seq, Code::capacity, "open too many");
    ++done_["open"];
    ASSERT_TRUE(seq);
    const auto same = [&](Seq other) { return other == *seq; };
    EXPECT_TRUE(std::none_of(stale_.begin(), stale_.end(), same)) << "a closed handle was given again";
    seqs_.push_back({*seq, 0, std::vector<Stored>(spec_.layers.size())});
    check(seqs_.back());
  }

  void close() {
    ++done_["close"];
    const std::size_t at = random_() % seqs_.size();
    EXPECT_TRUE(cache_->close(seqs_[at].handle));
    stale_.push_back(seqs_[at].handle);
    seqs_.erase(seqs_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void truncate() {
    ModelSeq& seq = any();
    if (chance(random_, 20)) {
      const Pos len = chance(random_, 50) ? -1 : seq.length + pick(random_, 1, 20);
      expect_error(cache_->truncate(seq.handle, len), Code::invalid_argument, "truncate to what is not there");
    } else {
      ++done_["truncate"];
      seq.length = pick(random_, 0, static_cast<int>(seq.length));
      EXPECT_TRUE(cache_->truncate(seq.handle, seq.length));
      for (Stored& layer : seq.layers) {
        layer.k.resize(static_cast<std::size_t>(seq.length));
        layer.v.resize(static_cast<std::size_t>(seq.length));
      }
    }
    check(seq);
  }

  void stale() {
    if (stale_.empty()) return;
    const Seq seq = stale_[random_() % stale_.size()];
    expect_error(cache_->close(seq), Code::not_found, "stale close");
    expect_error(cache_->length(seq), Code::not_found, "stale length");
    expect_error(cache_->truncate(seq, 0), Code::not_found, "stale truncate");
    expect_error(cache_->peek(seq, 0), Code::not_found, "stale peek");
    // A good sequence before the bad one: nothing of it may be kept.
    std::vector<Append> appends;
    if (const ModelSeq& good = any(); good.length < options_.max_len) appends.push_back({good.handle, 1});
    appends.push_back({seq, 1});
    expect_error(cache_->begin(appends), Code::not_found, "stale begin");
  }

  void bad_step() {
    const Seq seq = seqs_.front().handle;
    const Pos length = seqs_.front().length;
    const int kind = pick(random_, 1, 4);
    if (kind == 1) return expect_error(cache_->begin({}), Code::invalid_argument, "empty step");
    std::vector<Append> appends = {{seq, 1}, {seq, pick(random_, -1, 0)}};
    if (kind == 2) return expect_error(cache_->begin(appends), Code::invalid_argument, "no tokens");
    appends[1].tokens = std::numeric_limits<int>::max();
    if (kind == 3) return expect_error(cache_->begin(appends), Code::capacity, "too many rows");
    if (length == options_.max_len) return;
    appends[1].tokens = 1;
    expect_error(cache_->begin(appends), Code::invalid_argument, "twice in a step");
  }

  void append() {
    std::vector<std::size_t> order(seqs_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    order.resize(static_cast<std::size_t>(pick(random_, 1, static_cast<int>(order.size()))));
    std::vector<Append> appends;
    bool fits = true;
    for (const std::size_t i : order) {
      appends.push_back({seqs_[i].handle, pick(random_, 1, chance(random_, 50) ? 3 : 40)});
      fits = fits && seqs_[i].length + appends.back().tokens <= options_.max_len;
    }
    auto step = cache_->begin(appends);
    if (!fits) return expect_error(step, Code::capacity, "overflow");
    ASSERT_TRUE(step) << step.error().message;
    check_slices(**step, order, appends);
    const bool written = write(**step, order, appends);
    check_refusals();
    if (written) {
      check_step(**step, order);
      if (chance(random_, 75)) {
        ++done_["commit"];
        (*step)->commit();
        for (std::size_t i = 0; i < order.size(); ++i) seqs_[order[i]].length += appends[i].tokens;
        if (chance(random_, 50)) step->reset();
      }
    }
    abandon(*step, order);
    for (const std::size_t i : order) check(seqs_[i]);
  }

  // Destroys the step; rows that the model holds beyond a sequence's length were not committed.
  void abandon(std::unique_ptr<Step>& step, const std::vector<std::size_t>& order) {
    step.reset();
    for (const std::size_t i : order) {
      const auto length = static_cast<std::size_t>(seqs_[i].length);
      if (seqs_[i].layers[0].k.size() > length) ++done_["abandon"];
      for (Stored& layer : seqs_[i].layers) {
        layer.k.resize(std::min(layer.k.size(), length));
        layer.v.resize(std::min(layer.v.size(), length));
      }
    }
  }

  void check_slices(const Step& step, const std::vector<std::size_t>& order, const std::vector<Append>& appends) {
    ASSERT_EQ(step.slices().size(), appends.size());
    int row = 0;
    for (std::size_t i = 0; i < appends.size(); ++i) {
      const Slice& slice = step.slices()[i];
      EXPECT_EQ(slice.seq, appends[i].seq);
      EXPECT_EQ(slice.first, seqs_[order[i]].length);
      EXPECT_EQ(slice.row, row);
      EXPECT_EQ(slice.tokens, appends[i].tokens);
      row += slice.tokens;
    }
  }

  // Writes the layers in ranges of heads, in the cache and the model; at times it stops before the end and returns
  // false.
  bool write(Step& step, const std::vector<std::size_t>& order, const std::vector<Append>& appends) {
    const int rows = step.slices().back().row + step.slices().back().tokens;
    const bool stops = chance(random_, 10);
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& layer = spec_.layers[i];
      const auto type = [&] { return chance(random_, 50) ? DType::f32 : DType::f64; };
      const Activations k(random_, type(), rows, layer.kv_heads, layer.k_dim);
      const Activations v(random_, type(), rows, layer.kv_heads, layer.v_dim);
      int end = layer.kv_heads;
      while (end > 0) {
        const int begin = pick(random_, 0, end - 1);
        step.write(static_cast<int>(i), {begin, end}, k.rows(), v.rows());
        end = begin;
        if (stops && chance(random_, 50)) return false;
      }
      for (std::size_t s = 0; s < order.size(); ++s) {
        const Slice& slice = step.slices()[s];
        for (int t = 0; t < appends[s].tokens; ++t) {
          seqs_[order[s]].layers[i].k.push_back(k.stored(slice.row + t, layer.k));
          seqs_[order[s]].layers[i].v.push_back(v.stored(slice.row + t, layer.v));
        }
      }
    }
    return true;
  }

  // What a step alive forbids.
  void check_refusals() {
    if (!chance(random_, 10)) return;
    const Seq seq = any().handle;
    const Append append{seq, 1};
    expect_error(cache_->open(), Code::invalid_argument, "open in a step");
    expect_error(cache_->close(seq), Code::invalid_argument, "close in a step");
    expect_error(cache_->truncate(seq, 0), Code::invalid_argument, "truncate in a step");
    expect_error(cache_->begin({&append, 1}), Code::invalid_argument, "begin in a step");
  }

  // Before commit: the step sees its own rows, the sequence does not.
  void check_step(const Step& step, const std::vector<std::size_t>& order) {
    for (std::size_t s = 0; s < order.size(); ++s) {
      const ModelSeq& seq = seqs_[order[s]];
      for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
        const View view = step.view(static_cast<int>(i), static_cast<int>(s));
        EXPECT_EQ(difference(view, spec_.layers[i], seq.layers[i], static_cast<Pos>(seq.layers[i].k.size())), "");
      }
      check(seq, false);
    }
  }

  void check(const ModelSeq& seq, bool with_poison = true) {
    EXPECT_EQ(*cache_->length(seq.handle), seq.length);
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      const auto view = cache_->peek(seq.handle, static_cast<int>(i));
      ASSERT_TRUE(view);
      EXPECT_EQ(difference(*view, spec_.layers[i], seq.layers[i], seq.length), "") << "layer " << i;
      if (with_poison && options_.poison) {
        EXPECT_EQ(unpoisoned(*view, seq.handle.index, seq.length, options_.max_len), "") << "layer " << i;
      }
    }
  }

  void check_all() {
    for (const ModelSeq& seq : seqs_) check(seq);
  }

  void check_usage() {
    const CacheUsage usage = cache_->usage();
    Pos tokens = 0;
    for (const ModelSeq& seq : seqs_) tokens += seq.length;
    EXPECT_EQ(usage.reserved, plan_.reserved);
    EXPECT_EQ(usage.tokens, tokens);
    EXPECT_EQ(usage.used, static_cast<std::size_t>(tokens) * plan_.bytes_per_token);
    EXPECT_EQ(usage.seqs, static_cast<int>(seqs_.size()));
  }

  Random random_;
  CacheSpec spec_;
  CacheOptions options_;
  CachePlan plan_;
  std::unique_ptr<Cache> cache_;
  std::vector<ModelSeq> seqs_;
  std::vector<Seq> stale_;
  std::map<std::string, int> done_;
};

class RandomOperations : public testing::TestWithParam<int> {};

// 8 x 8 specs x 4,000 = 256,000 operations.
TEST_P(RandomOperations, HoldWhatTheModelHolds) {
  std::map<std::string, int> done;
  for (int i = 0; i < 8 && !HasFailure(); ++i) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * 8 + i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Driver driver(seed);
    driver.run(kOperations);
    for (const auto& [what, count] : driver.done()) done[what] += count;
  }
  // Every kind of operation was really met.
  for (const char* what : {"open",
                           "close",
                           "truncate",
                           "commit",
                           "abandon",
                           "overflow",
                           "open too many",
                           "truncate to what is not there",
                           "stale close",
                           "stale length",
                           "stale truncate",
                           "stale peek",
                           "stale begin",
                           "empty step",
                           "no tokens",
                           "too many rows",
                           "twice in a step",
                           "open in a step",
                           "close in a step",
                           "truncate in a step",
                           "begin in a step"}) {
    EXPECT_GE(done[what], kOperations / 40) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOperations, testing::Range(0, 8));

}  // namespace
}  // namespace stet::kv_test
