// The operations on sequences. Steps are in driver_steps.cpp; what all are held to is in driver_checks.cpp.
#include "kv/driver.hpp"

#include <algorithm>

#include "kv/make_cache.hpp"

namespace stet::kv_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What a sequence of `length` tokens has of a layer after everything that no later query sees is gone.
Extent seen(const LayerSpec& layer, Pos length) {
  if (layer.span.window == 0) return {};
  // One more than the next query sees: the last token can be computed again.
  const Pos first = std::max<Pos>(length - std::max<Pos>(layer.span.window, 2), 0) / 16 * 16;
  const Pos sinks = (layer.span.sinks + 15) / 16 * 16;
  return first > sinks ? Extent{sinks, first} : Extent{};
}

}  // namespace

int Choices::pick(int low, int high) {
  if (!bytes_) return kv_test::pick(random_, low, high);
  const auto next = [&] { return at_ < bytes_->size() ? int{(*bytes_)[at_++]} : 0; };
  const int range = high - low + 1, value = next();
  return low + (range <= 256 ? value : value * 256 + next()) % range;
}

Driver::Driver(std::uint64_t seed, Choices choices) : choices_(choices), values_(seed) {
  spec_ = random_spec(values_, 4, 2, 4);
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    const auto first = std::find(spec_.layers.begin(), spec_.layers.end(), spec_.layers[i]);
    const auto at = static_cast<std::size_t>(first - spec_.layers.begin());
    if (at == i) heads_.push_back(i);
    groups_.push_back(at == i ? heads_.size() - 1 : groups_[at]);
    scratch_.emplace_back(spec_.layers[i]);
    row_bytes_.push_back(kv::row_bytes(spec_.layers[i]));
  }
  CacheOptions options;
  options.max_len = kv_test::pick(values_, 10, chance(values_, 20) ? 400 : 200);
  options.max_seqs = kv_test::pick(values_, chance(values_, 10) ? 1 : 3, 6);
  if (chance(values_, 60)) options.max_step_tokens = kv_test::pick(values_, 1, 45);
  options.poison = kNan;
  const bool tight = chance(values_, 40);  // some pools run out
  add("contiguous, all retained", [&] {
    auto o = options;
    o.retain = Retain::all;
    return o;
  }());
  add("contiguous", options);
  options.poison.reset();
  options.layout = Layout::growing;
  if (chance(values_, 50)) options.poison = kNan;
  add("growing", options);
  options.layout = Layout::paged;
  for (const Pos page : {16, 32, 64, 128}) {
    options.page_tokens = page;
    options.shuffle = values_();
    options.poison.reset();
    if (chance(values_, 50)) options.poison = chance(values_, 50) ? kNan : 1e30;
    options.pool_tokens =
        tight ? kv_test::pick(values_, static_cast<int>(options.max_len) / (chance(values_, 20) ? 4 : 1),
                              static_cast<int>(options.max_len) * 4)
              : 0;
    options.retain = chance(values_, 20) ? Retain::all : Retain::visible;
    add("pages of " + std::to_string(page), options);
  }
}

// One cache more, after each of its allocations has been refused once.
void Driver::add(const std::string& name, CacheOptions options) {
  Subject subject{name, options, nullptr, 0, 0, {}, {}};
  doing_ = "making";
  const auto plan = plan_cache(spec_, options);
  require(plan.has_value(), subject, "the plan was refused");
  subject.reserved = plan->reserved;
  for (int refused = 1; !subject.cache; ++refused) {
    int calls = 0;
    auto cache = kv::make_cache(spec_, options, [&](std::size_t bytes) -> Result<base::Buffer> {
      if (++calls == refused) return fail(Code::capacity, "planted");
      return base::Buffer::allocate(bytes);
    });
    if (cache) {
      subject.cache = std::move(*cache);
    } else {
      expect_error(subject, cache, Code::capacity, "allocation refused");
    }
  }
  for (std::size_t i = 0; options.poison && i < spec_.layers.size(); ++i) {
    subject.poison.push_back(scratch_[i].poison(*options.poison));
  }
  for (const std::size_t head : heads_) {
    const Pos pages = options.layout == Layout::paged ? pool_pages(spec_.layers[head], options) : 0;
    subject.owners.emplace_back(static_cast<std::size_t>(pages), 0);
  }
  subjects_.push_back(std::move(subject));
}

void Driver::run(int operations) {
  for (operation_ = 0; operation_ < operations && !choices_.ended(); ++operation_) {
    operate();
    check_usage();
    for (Subject& subject : subjects_) check_pages(subject);
    if (operation_ % 128 == 127) check_all();
  }
  doing_ = "ending";
  check_all();
  while (!seqs_.empty()) close(seqs_.size() - 1);
  for (Subject& subject : subjects_) {
    require(subject.cache->usage().live == 0 && subject.cache->pages().empty(), subject, "not all came back");
  }
  check_all();
}

void Driver::operate() {
  const int die = choices_.pick(1, 100);
  if (seqs_.empty() || die <= 6) return open();
  if (die <= 12) return close(static_cast<std::size_t>(choices_.pick(0, static_cast<int>(seqs_.size()) - 1)));
  if (die <= 24) return truncate();
  if (die <= 36) return fork();
  if (die <= 41) return restore();
  if (die <= 43) return refuse_restoring();
  if (die <= 46) return stale();
  if (die <= 49) return bad_step();
  append();
}

// Adds a new sequence, when every cache could give it; else those that could forget it.
void Driver::adopt(ModelSeq seq, const char* what, const std::vector<std::optional<Result<Seq>>>& given) {
  const bool all = std::all_of(given.begin(), given.end(), [](const auto& g) { return g->has_value(); });
  ++done_[all ? what : std::string(what) + " refused"];
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    if (!all && *given[i]) require(subjects_[i].cache->close(**given[i]).has_value(), subjects_[i], "closing failed");
    if (!all) continue;
    for (const auto& old : stale_) require(!(old[i] == **given[i]), subjects_[i], "a closed handle was given again");
    seq.handles.push_back(**given[i]);
  }
  if (!all) return;
  seqs_.push_back(std::move(seq));
  check(seqs_.back());
}

void Driver::open() {
  doing_ = "open";
  std::vector<std::optional<Result<Seq>>> given;
  for (Subject& subject : subjects_) {
    given.emplace_back(subject.cache->open());
    if (static_cast<int>(seqs_.size()) == subject.options.max_seqs) {
      expect_error(subject, *given.back(), Code::capacity, "open too many");
    } else {
      require(given.back()->has_value(), subject, "opening failed");
    }
  }
  const std::vector<Extent> whole(spec_.layers.size());
  adopt({{}, {}, whole, whole}, "open", given);
}

void Driver::close(std::size_t at) {
  doing_ = "close";
  ++done_[doing_];
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    require(subjects_[i].cache->close(seqs_[at].handles[i]).has_value(), subjects_[i], "closing failed");
  }
  stale_.push_back(seqs_[at].handles);
  if (stale_.size() > 16) stale_.erase(stale_.begin());
  seqs_.erase(seqs_.begin() + static_cast<std::ptrdiff_t>(at));
}

const Extent& Driver::extent(const ModelSeq& seq, const Subject& subject, std::size_t layer) const {
  return subject.evicts() ? seq.visible[layer] : seq.all[layer];
}

// The shortest length above 0 whose next query finds all that it sees.
Pos Driver::oldest(const ModelSeq& seq, const Subject& subject) const {
  Pos length = 0;
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    const Pos first = extent(seq, subject, i).first;
    if (first > 0) length = std::max(length, first + std::max<Pos>(spec_.layers[i].span.window - 1, 1));
  }
  return length;
}

void Driver::truncate() {
  doing_ = "truncate";
  ModelSeq& seq = any();
  Pos len = choices_.pick(0, static_cast<int>(seq.length()));
  if (choices_.chance(80)) len = std::max<Pos>(seq.length() - choices_.pick(0, 8), 0);
  if (choices_.chance(10)) len = choices_.chance(50) ? -1 : seq.length() + choices_.pick(1, 20);
  const bool there = len >= 0 && len <= seq.length();
  // Those that have evicted too much refuse, and then the others are left alone.
  bool all = there;
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    if (there && (len == 0 || len >= oldest(seq, subjects_[i]))) continue;
    all = false;
    expect_error(subjects_[i], subjects_[i].cache->truncate(seq.handles[i], len), Code::invalid_argument,
                 there ? "truncate to what was evicted" : "truncate to what is not there");
    expect_error(subjects_[i], subjects_[i].cache->fork(seq.handles[i], len), Code::invalid_argument,
                 there ? "fork at what was evicted" : "fork at what is not there");
  }
  if (all) {
    ++done_[doing_];
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      require(subjects_[i].cache->truncate(seq.handles[i], len).has_value(), subjects_[i], "truncating failed");
    }
    seq.tokens.resize(static_cast<std::size_t>(len));
    if (len == 0) seq.visible = seq.all = std::vector<Extent>(spec_.layers.size());
  }
  check(seq);
}

void Driver::fork() {
  doing_ = "fork";
  const ModelSeq& seq = any();
  Pos upto = choices_.chance(50) ? seq.length() : choices_.pick(0, static_cast<int>(seq.length()));
  for (const Subject& subject : subjects_) upto = std::max(upto, upto == 0 ? 0 : oldest(seq, subject));
  ModelSeq forked{{}, {seq.tokens.begin(), seq.tokens.begin() + upto}, seq.visible, seq.all};
  if (upto == 0) forked.visible = forked.all = std::vector<Extent>(spec_.layers.size());
  std::vector<std::optional<Result<Seq>>> given;
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    Subject& subject = subjects_[i];
    given.emplace_back(subject.cache->fork(seq.handles[i], upto));
    if (static_cast<int>(seqs_.size()) == subject.options.max_seqs) {
      expect_error(subject, *given.back(), Code::capacity, "fork too many");
      continue;
    }
    require(given.back()->has_value(), subject, "forking failed");
    for (std::size_t layer = 0; !subject.paged() && layer < spec_.layers.size(); ++layer) {
      const Extent& has = extent(forked, subject, layer);
      subject.copied += static_cast<std::uint64_t>(has.kept + upto - has.first) * row_bytes_[layer];
    }
  }
  adopt(std::move(forked), "fork", given);
}

// From the views of one cache into all.
void Driver::restore() {
  doing_ = "restore";
  const ModelSeq& seq = any();
  const auto from = static_cast<std::size_t>(choices_.pick(0, static_cast<int>(subjects_.size()) - 1));
  const Pos least = oldest(seq, subjects_[from]);
  const Pos length = choices_.pick(static_cast<int>(least), static_cast<int>(seq.length()));
  ModelSeq made{{}, {seq.tokens.begin(), seq.tokens.begin() + length}, {}, {}};
  for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    // What the views have, and where windows evict no more than is kept.
    const Extent& has = extent(seq, subjects_[from], layer);
    const Extent kept = seen(spec_.layers[layer], length);
    made.visible.push_back(has.first > kept.first ? has : kept);
    made.all.push_back(has);
  }
  std::vector<std::optional<Result<Seq>>> given;
  for (Subject& subject : subjects_) {
    std::vector<View> views;
    for (int i = 0; i < static_cast<int>(spec_.layers.size()); ++i) {
      views.push_back(*subjects_[from].cache->peek(seq.handles[from], i));
    }
    std::optional<Code> code;
    for (std::size_t g = 0; subject.paged() && g < heads_.size(); ++g) {
      const Extent& has = extent(made, subject, heads_[g]);
      const Pos page = subject.options.page_tokens;
      Pos need = 0, last = -1;
      for (Pos pos = 0; pos < length; ++pos) {
        if (has.has(pos) && std::exchange(last, pos / page) != pos / page) ++need;
      }
      const auto pages = static_cast<Pos>(subject.owners[g].size());
      if (need > pages - static_cast<Pos>(used(subject, g))) code = need > pages ? Code::capacity : Code::exhausted;
      if (code) break;
    }
    if (static_cast<int>(seqs_.size()) == subject.options.max_seqs) code = Code::capacity;
    given.emplace_back(subject.cache->restore(length, views));
    if (code) {
      expect_error(subject, *given.back(), *code, "restore without room");
    } else {
      require(given.back()->has_value(), subject, "restoring failed");
    }
  }
  adopt(std::move(made), "restore", given);
}

// Views that lack something, or contradict themselves.
void Driver::refuse_restoring() {
  doing_ = "refuse restoring";
  const ModelSeq& seq = any();
  Subject& subject = subjects_[static_cast<std::size_t>(choices_.pick(0, static_cast<int>(subjects_.size()) - 1))];
  const auto at = static_cast<std::size_t>(&subject - subjects_.data());
  std::vector<View> views;
  for (int i = 0; i < static_cast<int>(spec_.layers.size()); ++i) {
    views.push_back(*subject.cache->peek(seq.handles[at], i));
  }
  View& view = views[static_cast<std::size_t>(choices_.pick(0, static_cast<int>(views.size()) - 1))];
  CellLayout other = *view.layout;
  Pos length = seq.length();
  Code code = Code::invalid_argument;
  switch (choices_.pick(0, 9)) {
    case 0:
      view.layout = nullptr;
      break;
    case 1:
      other.k_dim += 1;
      view.layout = &other;
      break;
    case 2:
      view.kept = view.first + 16;
      break;
    case 3:
      view.first = -1;
      break;
    case 4:
      view.count = std::numeric_limits<Pos>::max();
      view.first = 16;
      break;
    case 5:
      if (length == 0) return;
      view.count -= 1;
      break;
    case 6:
      if (length == 0) return;
      view.cells = view.cells.first(view.cells.size() - 1);
      break;
    case 7:
      views.pop_back();
      break;
    case 8:
      length = -1;
      break;
    default:
      length = subject.options.max_len + 1;
      code = Code::capacity;
  }
  expect_error(subject, subject.cache->restore(length, views), code, "restore from a bad view");
}

void Driver::stale() {
  doing_ = "stale handles";
  if (stale_.empty()) return;
  const auto& handles = stale_[static_cast<std::size_t>(choices_.pick(0, static_cast<int>(stale_.size()) - 1))];
  const ModelSeq& good = any();
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    Cache& cache = *subjects_[i].cache;
    const auto refused = [&](const auto& result, const char* what) {
      expect_error(subjects_[i], result, Code::not_found, what);
    };
    refused(cache.close(handles[i]), "stale close");
    refused(cache.length(handles[i]), "stale length");
    refused(cache.truncate(handles[i], 0), "stale truncate");
    refused(cache.oldest_restorable(handles[i]), "stale oldest_restorable");
    refused(cache.fork(handles[i], 0), "stale fork");
    refused(cache.peek(handles[i], 0), "stale peek");
    // A good sequence before the bad one: nothing of it may be kept.
    std::vector<Append> appends;
    if (good.length() < subjects_[i].options.max_len) appends.push_back({good.handles[i], 1});
    appends.push_back({handles[i], 1});
    refused(cache.begin(appends), "stale begin");
  }
}

void Driver::bad_step() {
  doing_ = "bad steps";
  const ModelSeq& seq = seqs_.front();
  const int kind = choices_.pick(1, 5), few = choices_.pick(-1, 0);
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    Cache& cache = *subjects_[i].cache;
    const auto refused = [&](std::vector<Append> appends, Code code, const char* what) {
      expect_error(subjects_[i], cache.begin(appends), code, what);
    };
    const Append one{seq.handles[i], 1};
    const Pos most = subjects_[i].options.max_step_tokens;
    if (kind == 1) refused({}, Code::invalid_argument, "empty step");
    if (kind == 2) refused({one, {one.seq, few}}, Code::invalid_argument, "no tokens");
    if (kind == 3) refused({one, {one.seq, std::numeric_limits<int>::max()}}, Code::capacity, "too many rows");
    if (kind == 4 && seq.length() < subjects_[i].options.max_len) {
      refused({one, one}, Code::invalid_argument, "twice in a step");
    }
    if (kind == 5 && most > 0) refused({{one.seq, static_cast<int>(most) + 1}}, Code::capacity, "too long a step");
  }
}

void Driver::evict(ModelSeq& seq) {
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    const Extent now = seen(spec_.layers[i], seq.length());
    if (now.first > seq.visible[i].first) {
      ++done_["evict"];
      seq.visible[i] = now;
    }
  }
}

}  // namespace stet::kv_test
