// Random operations on caches of every layout at once, and on a simple model of them: each sequence is a vector of
// tokens, a token the bytes of its rows. After each operation every cache must hold the model's rows bit for bit, and
// say of itself what the model says. The test draws the operations at random, the fuzz target from its input.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/rows.hpp"
#include "stet/cache.hpp"

namespace stet::kv_test {

/// The first thing that was not as it should be.
struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where decisions come from: a generator, or bytes until they end.
class Choices {
 public:
  explicit Choices(std::uint64_t seed) : random_(seed) {}
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  /// An integer of [low, high].
  int pick(int low, int high);
  bool chance(int percent) { return pick(1, 100) <= percent; }
  bool ended() const { return bytes_ && at_ >= bytes_->size(); }

 private:
  Random random_{0};
  std::optional<std::span<const std::uint8_t>> bytes_;
  std::size_t at_ = 0;
};

/// What a sequence has of a layer besides its end, as in a View.
struct Extent {
  Pos kept = 0, first = 0;
  bool has(Pos pos) const { return pos < kept || pos >= first; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

struct ModelSeq {
  std::vector<Seq> handles;  // one a cache
  std::vector<Token> tokens;
  std::vector<Extent> visible, all;  // of each layer, where windows evict and where they do not

  Pos length() const { return static_cast<Pos>(tokens.size()); }
};

/// A cache and what is known of it.
struct Subject {
  std::string name;
  CacheOptions options;
  std::unique_ptr<Cache> cache;
  std::size_t reserved = 0;
  std::uint64_t copied = 0;
  std::vector<std::vector<std::byte>> poison;  // of each layer: a row that is none
  std::vector<std::vector<int>> owners;        // paged: of each group and page

  bool evicts() const { return options.retain == Retain::visible && options.layout != Layout::growing; }
  bool paged() const { return options.layout == Layout::paged; }
};

class Driver {
 public:
  /// `seed` chooses specs, options and values. Throws Failed, as all of it.
  Driver(std::uint64_t seed, Choices choices);

  /// Until the choices end at the latest.
  void run(int operations);

  /// How often each kind of thing was met.
  const std::map<std::string, int>& done() const { return done_; }

 private:
  struct Appended {
    std::vector<std::size_t> order;  // sequences
    std::vector<Append> appends;     // handles are the model's own: each cache gets its own
    std::vector<std::vector<Token>> tokens;
    bool complete = false;
  };
  using Steps = std::vector<std::unique_ptr<Step>>;

  // driver.cpp: operations
  void add(const std::string& name, CacheOptions options);
  void operate();
  void open();
  void close(std::size_t at);
  void truncate();
  void fork();
  void restore();
  void refuse_restoring();
  void stale();
  void bad_step();
  void evict(ModelSeq& seq);
  void adopt(ModelSeq seq, const char* what, const std::vector<std::optional<Result<Seq>>>& given);
  ModelSeq& any() { return seqs_[static_cast<std::size_t>(choices_.pick(0, static_cast<int>(seqs_.size()) - 1))]; }
  Pos oldest(const ModelSeq& seq, const Subject& subject) const;
  const Extent& extent(const ModelSeq& seq, const Subject& subject, std::size_t layer) const;

  // driver_steps.cpp
  void append();
  bool begin(const Appended& step, Steps& steps);
  void write(Appended& step, Steps& steps);
  void refuse_in_step();
  void finish(const Appended& step, Steps& steps);

  // driver_checks.cpp
  template <class T>
  void expect_error(const Subject& subject, const Result<T>& result, Code code, const char* what);
  void require(bool good, const Subject& subject, const char* what) const;
  void check(const ModelSeq& seq);
  void check_step(const Appended& step, const Steps& steps);
  void check_rows(const Subject& subject, const View& view, std::size_t layer, const std::vector<const Token*>& tokens,
                  const Extent& extent);
  void check_usage();
  void check_pages(Subject& subject);
  void check_poison(const Subject& subject);
  void check_all();
  std::optional<Code> expected(const Subject& subject, const Appended& step) const;
  bool copies(const Subject& subject, const Appended& step, std::size_t slice, std::size_t layer) const;
  std::size_t used(const Subject& subject, std::size_t g) const;

  Choices choices_;
  Random values_;
  CacheSpec spec_;
  std::vector<std::size_t> heads_;   // the first layer of each group
  std::vector<std::size_t> groups_;  // the group of each layer
  std::vector<std::size_t> row_bytes_;
  std::vector<ScratchCell> scratch_;
  std::vector<Subject> subjects_;
  std::vector<ModelSeq> seqs_;
  std::vector<std::vector<Seq>> stale_;
  std::map<std::string, int> done_;
  int operation_ = 0;
  std::string doing_;
};

}  // namespace stet::kv_test
