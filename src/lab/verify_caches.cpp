// Pairs over the cache family. Side a is always the plain cache of the same codecs and windows: contiguous, every row
// kept, windows as masks, all in one chunk.
#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv/prefix_index.hpp"
#include "lab/pairs.hpp"

namespace stet::lab {
namespace {

constexpr std::uint64_t kShuffle = 20;
constexpr Pos kLongestStep = 9;  // of the paths below that are driven by hand

// What the layers see, given the length of the pair's sequences.
using Spans = std::function<std::vector<Span>(Pos n)>;

struct Choice {
  CacheChoice cache;
  Spans spans;  // empty: the model's own

  CacheChoice at(Pos n) const {
    CacheChoice choice = cache;
    if (spans) choice.spans = spans(n);
    return choice;
  }
  // For going back to before a window, whose rows must then be there.
  Choice keeping_all() const {
    Choice choice = *this;
    choice.cache.retain = Retain::all;
    return choice;
  }
  CacheChoice plain(Pos n) const {
    CacheChoice choice;
    choice.codecs = cache.codecs;
    choice.spans = at(n).spans;
    return choice;
  }
};

CacheChoice layout_choice(Layout layout, Pos page = 16) {
  CacheChoice choice;
  choice.layout = layout;
  choice.retain = Retain::visible;
  choice.page_tokens = page;
  if (layout == Layout::paged) choice.shuffle = kShuffle;
  return choice;
}

const std::array<CacheChoice, 6>& layouts() {
  static const std::array<CacheChoice, 6> all = {layout_choice(Layout::contiguous), layout_choice(Layout::growing),
                                                 layout_choice(Layout::paged, 16),  layout_choice(Layout::paged, 32),
                                                 layout_choice(Layout::paged, 64),  layout_choice(Layout::paged, 128)};
  return all;
}

std::string words(const CacheChoice& choice) {
  return choice.layout == Layout::paged ? fmt::format("pages of {}", choice.page_tokens) : name_of(choice.layout);
}

std::string words(const std::optional<std::pair<Codec, Codec>>& codecs) {
  if (!codecs) return "";
  if (codecs->first == codecs->second) return name_of(codecs->first);
  return fmt::format("{}+{}", name_of(codecs->first), name_of(codecs->second));
}

Conditions with(Conditions conditions, CacheChoice cache, int threads = 1) {
  conditions.cache = std::move(cache);
  conditions.threads = threads;
  return conditions;
}

Side plain(const Choice& choice) {
  return [choice](const Given& g) { return g.path(in_chunks(g.ids, g.n()), with(g.usual(), choice.plain(g.n()))); };
}

Spec against_plain(std::string name, const Choice& choice, Side other) {
  Spec spec;
  spec.name = std::move(name);
  spec.a = plain(choice);
  spec.b = std::move(other);
  spec.seconds = linear;
  return spec;
}

// A path that only differs in where and how rows are stored, and in its steps.
Spec stored(std::string name, const Choice& choice, Pos chunk, int threads = 1) {
  return against_plain(std::move(name), choice, [=](const Given& g) {
    return g.path(in_chunks(g.ids, g.chunk(chunk)), g.damaged(with(g.usual(), choice.at(g.n()), threads)));
  });
}

// The windows of a third of a sequence: it goes from below W to 3 W.
Pos third(Pos n) {
  return std::max<Pos>(1, n / 3);
}
std::vector<Span> window(Pos n) {
  return {{third(n), 0}};
}
std::vector<Span> window_and_sinks(Pos n) {
  return {{third(n), std::min<Pos>(4, n / 4)}};
}
std::vector<Span> mixed(Pos n) {
  return {{0, 0}, {third(n), 0}, {std::max<Pos>(1, n / 8), 2}};
}

struct Windows {
  const char* name;
  Spans spans;
};
const std::array<Windows, 4>& windows() {
  static const std::array<Windows, 4> all = {
      {{"", {}}, {"window", window}, {"window and sinks", window_and_sinks}, {"mixed windows", mixed}}};
  return all;
}

// What slots without a row hold must not matter.
Spec filled(const std::string& name, const Choice& choice, double value) {
  return against_plain(name, choice, [=](const Given& g) {
    Conditions conditions = with(g.usual(), choice.at(g.n()));
    conditions.poison = value;
    return g.path(in_chunks(g.ids, g.chunk(6)), g.damaged(conditions));
  });
}

// ---- Forks, cuts, hits and restoring

// Positions around the first edges of cells and of the layout's pages, or all.
std::vector<Pos> positions(Pos n, const Choice& choice, bool all) {
  const auto at_edge = [](Pos p, Pos size) { return p < 3 * size && (p % size <= 1 || p % size == size - 1); };
  const Pos page = choice.cache.layout == Layout::paged ? choice.cache.page_tokens : kCell;
  std::vector<Pos> some;
  for (Pos p = 1; p < n; ++p) {
    if (all || p == 1 || p + 1 == n || p == n / 2 || at_edge(p, kCell) || at_edge(p, page)) some.push_back(p);
  }
  return some;
}

std::size_t row_bytes(const Given& g) {
  return static_cast<std::size_t>(g.loaded->model->config().vocab) * size_of(g.loaded->model->dtype());
}

// From one run over everything the rows [from, n) for each of `from`.
Result<Outcome> tails(const Given& g, const Choice& choice, const std::vector<Pos>& from) {
  auto whole = plain(choice)(g);
  if (!whole) return whole;
  Outcome outcome{{}, whole->element_bytes, whole->record};
  for (const Pos p : from) {
    const auto begin =
        whole->elements.begin() + static_cast<std::ptrdiff_t>(p) * static_cast<std::ptrdiff_t>(row_bytes(g));
    outcome.elements.insert(outcome.elements.end(), begin, whole->elements.end());
  }
  return outcome;
}

Result<Drive> drive(const Given& g, const CacheChoice& choice, int seqs) {
  auto made = Drive::make(*g.loaded->model, g.damaged(with(g.usual(), choice)), {g.n(), kLongestStep, seqs});
  if (made) made->keep_going = g.go;
  return made;
}

Outcome outcome_of(const Given& g, const Drive& drive, std::vector<std::byte> elements) {
  return {std::move(elements), size_of(g.loaded->model->dtype()), drive.record()};
}

// One sequence, forked at each position and continued in the fork; a fork that goes another way leaves it alone.
Result<Outcome> forked(const Given& g, const Choice& choice, const std::vector<Pos>& at) {
  auto d = drive(g, choice.at(g.n()), 2);
  if (!d) return pass(d);
  std::vector<std::byte> elements;
  auto base = d->cache().open();
  if (!base) return pass(base);
  if (auto ok = d->feed(*base, g.ids, g.n(), kLongestStep, &elements); !ok) return pass(ok);
  for (const Pos p : at) {
    auto other = d->cache().fork(*base, p);
    if (!other) return pass(other);
    if (auto ok = d->feed(*other, g.others, std::min(g.n(), p + 5), 2, nullptr); !ok) return pass(ok);
    (void)d->cache().close(*other);
    auto same = d->cache().fork(*base, p);
    if (!same) return pass(same);
    if (auto ok = d->feed(*same, g.ids, g.n(), 3, &elements); !ok) return pass(ok);
    (void)d->cache().close(*same);
  }
  return outcome_of(g, *d, std::move(elements));
}

// Cut back to each position, led astray, cut back again and continued.
Result<Outcome> cut(const Given& g, const Choice& choice, const std::vector<Pos>& at) {
  auto d = drive(g, choice.at(g.n()), 1);
  if (!d) return pass(d);
  std::vector<std::byte> elements;
  auto seq = d->cache().open();
  if (!seq) return pass(seq);
  if (auto ok = d->feed(*seq, g.ids, g.n(), kLongestStep, &elements); !ok) return pass(ok);
  for (const Pos p : at) {
    if (auto ok = d->cache().truncate(*seq, p); !ok) return pass(ok);
    if (auto ok = d->feed(*seq, g.others, std::min(g.n(), p + 18), 5, nullptr); !ok) return pass(ok);
    if (auto ok = d->cache().truncate(*seq, p); !ok) return pass(ok);
    if (auto ok = d->feed(*seq, g.ids, g.n(), 3, &elements); !ok) return pass(ok);
  }
  return outcome_of(g, *d, std::move(elements));
}

// Rows of other tokens are written first, where codes and scales must then both be replaced.
Spec detours(const std::string& name, const Choice& choice) {
  Spec spec = against_plain(name, choice, [=](const Given& g) {
    return g.path(with_detours(g.ids, g.others), g.damaged(with(g.usual(), choice.at(g.n()))));
  });
  spec.seconds = [](const Cost& c, double n) { return 5 * linear(c, n); };
  return spec;
}

// The same at the end of a sequence as it grows, which windows that evict allow too.
Result<Outcome> forked_at_its_end(const Given& g, const Choice& choice, const std::vector<Pos>& at) {
  auto d = drive(g, choice.at(g.n()), 2);
  if (!d) return pass(d);
  std::vector<std::byte> elements, forks;
  auto base = d->cache().open();
  if (!base) return pass(base);
  for (const Pos p : at) {
    if (auto ok = d->feed(*base, g.ids, p, kLongestStep, &elements); !ok) return pass(ok);
    for (const bool same : {false, true}) {
      auto fork = d->cache().fork(*base, p);
      if (!fork) return pass(fork);
      if (auto ok = d->feed(*fork, same ? g.ids : g.others, g.n(), 4, same ? &forks : nullptr); !ok) return pass(ok);
      (void)d->cache().close(*fork);
    }
  }
  if (auto ok = d->feed(*base, g.ids, g.n(), kLongestStep, &elements); !ok) return pass(ok);
  elements.insert(elements.end(), forks.begin(), forks.end());
  return outcome_of(g, *d, std::move(elements));
}

using Forked = Result<Outcome>(const Given&, const Choice&, const std::vector<Pos>&);

Spec forks(const std::string& name, const Choice& choice, bool all, Forked* fork = forked) {
  return {name,
          [=](const Given& g) {
            auto from = positions(g.n(), choice, all);
            from.insert(from.begin(), 0);
            return tails(g, choice, from);
          },
          [=](const Given& g) { return fork(g, choice, positions(g.n(), choice, all)); },
          [all](const Cost& c, double n) { return (all ? n / 2 : 12) * n * (c.row + c.token / 3); }};
}

// A parked sequence of `parked` tokens, hit by a longer prompt, which is then sent again. The pool has room for one
// sequence.
Result<void> hit_twice(const Given& g, const Choice& choice, Pos parked, std::vector<std::byte>& elements,
                       std::string& record) {
  CacheChoice exact = choice.at(g.n());
  exact.pool_tokens = exact.layout == Layout::paged ? g.n() : 0;
  auto d = drive(g, exact, 2);
  if (!d) return pass(d);
  kv::PrefixIndex index(d->cache());
  d->make_room = [&index] {
    const auto evicted = index.evict_one();
    return evicted && *evicted;
  };
  auto seq = d->cache().open();
  if (!seq) return pass(seq);
  if (auto ok = d->feed(*seq, g.ids, parked, kLongestStep, nullptr); !ok) return ok;
  if (auto ok = index.insert(*seq, std::span(g.ids).first(static_cast<std::size_t>(parked))); !ok) return ok;
  for (const Pos expected : {std::min(parked, g.n() - 1), g.n() - 1}) {
    auto hit = index.lookup(g.ids);
    if (!hit) return pass(hit);
    if (!hit->seq || hit->tokens != expected) {
      return fail(Code::corrupt, fmt::format("a prompt of {} tokens of which {} are kept hit {} instead of {}", g.n(),
                                             parked, hit->tokens, expected));
    }
    if (auto ok = d->feed(*hit->seq, g.ids, g.n(), 4, &elements); !ok) return ok;
    if (auto ok = index.insert(*hit->seq, g.ids); !ok) return ok;
  }
  record = d->record();
  return {};
}

Spec hits(const std::string& name, const Choice& choice, bool all) {
  return {name,
          [=](const Given& g) {
            std::vector<Pos> from;
            for (const Pos p : positions(g.n(), choice, all)) from.insert(from.end(), {p, g.n() - 1});
            return tails(g, choice, from);
          },
          [=](const Given& g) -> Result<Outcome> {
            Outcome outcome{{}, size_of(g.loaded->model->dtype()), ""};
            for (const Pos p : positions(g.n(), choice, all)) {
              if (auto ok = hit_twice(g, choice, p, outcome.elements, outcome.record); !ok) return pass(ok);
            }
            return outcome;
          },
          [all](const Cost& c, double n) { return (all ? n : 12) * n * (c.row + c.token / 4); }};
}

// Stopped halfway, and continued from the stored rows in a cache of another layout.
Result<Outcome> moved(const Given& g, const Choice& from, const Choice& to) {
  const Pos half = std::max<Pos>(1, g.n() / 2);
  auto first = drive(g, from.at(g.n()), 1);
  if (!first) return pass(first);
  auto second = drive(g, to.at(g.n()), 1);
  if (!second) return pass(second);
  std::vector<std::byte> elements;
  auto seq = first->cache().open();
  if (!seq) return pass(seq);
  if (auto ok = first->feed(*seq, g.ids, half, 5, &elements); !ok) return pass(ok);
  std::vector<View> views;
  for (int layer = 0; layer < g.loaded->model->config().layers; ++layer) {
    auto view = first->cache().peek(*seq, layer);
    if (!view) return pass(view);
    views.push_back(*view);
  }
  auto restored = second->cache().restore(half, views);
  if (!restored) return pass(restored);
  if (auto ok = second->feed(*restored, g.ids, g.n(), 3, &elements); !ok) return pass(ok);
  Outcome outcome = outcome_of(g, *second, std::move(elements));
  outcome.record = first->record() + "; " + outcome.record;
  return outcome;
}

Spec restored(const std::string& name, const Choice& from, const Choice& to) {
  return against_plain(name, to, [=](const Given& g) { return moved(g, from, to); });
}

using Codecs = std::optional<std::pair<Codec, Codec>>;
const std::array<Codecs, 6>& codecs() {
  static const std::array<Codecs, 6> all = {Codecs{},
                                            Codecs{{Codec::bf16, Codec::bf16}},
                                            Codecs{{Codec::f16, Codec::f16}},
                                            Codecs{{Codec::int8, Codec::int8}},
                                            Codecs{{Codec::int4, Codec::int4}},
                                            Codecs{{Codec::int8, Codec::int4}}};
  return all;
}

std::string joined(std::initializer_list<std::string> parts) {
  std::string text;
  for (const auto& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

// A sample in which each layout, codec and kind of window meets the others.
void add_sample(std::vector<Spec>& specs) {
  const Pos chunks[] = {1, 5, 16, 37};
  std::size_t i = 0;
  for (const CacheChoice& layout : layouts()) {
    if (layout.layout == Layout::contiguous) continue;
    specs.push_back(stored(fmt::format("cache: {}", words(layout)), {layout, {}}, chunks[i++ % 4]));
  }
  for (const Codecs& pair : codecs()) {
    if (!pair) continue;
    CacheChoice layout = layouts()[i % layouts().size()];
    layout.codecs = pair;
    specs.push_back(
        stored(fmt::format("cache: {}", joined({words(pair), words(layout)})), {layout, {}}, chunks[i % 4], 2));
    ++i;
  }
  for (const Windows& w : windows()) {
    if (!w.spans) continue;
    for (const std::size_t at : {std::size_t{0}, std::size_t{2}, 4 + i % 2}) {
      CacheChoice layout = layouts()[at];
      layout.codecs = at == 2 ? codecs()[3] : Codecs{};
      specs.push_back(stored(fmt::format("{}: {}", w.name, joined({words(layout.codecs), words(layout)})),
                             {layout, w.spans}, chunks[i++ % 3]));
    }
  }
}

void add_matrix(std::vector<Spec>& specs) {
  for (const Codecs& pair : codecs()) {
    for (const Windows& w : windows()) {
      for (CacheChoice layout : layouts()) {
        layout.codecs = pair;
        for (const Pos chunk : {1, 5, 16, 37}) {
          for (const int threads : {1, 3}) {
            specs.push_back(stored(joined({words(layout), words(pair), w.name, fmt::format("chunks of {}", chunk),
                                           fmt::format("{} threads", threads)}),
                                   {layout, w.spans}, chunk, threads));
          }
        }
      }
    }
  }
}

}  // namespace

std::vector<Spec> cache_pairs(bool all) {
  std::vector<Spec> specs;
  if (all) {
    add_matrix(specs);
  } else {
    add_sample(specs);
  }
  const CacheChoice contiguous = layouts()[0], growing = layouts()[1], pages = layouts()[2], large = layouts()[4];
  CacheChoice int8 = pages;
  int8.codecs = codecs()[3];
  CacheChoice int8_growing = growing;
  int8_growing.codecs = codecs()[3];
  specs.push_back(filled("unused slots 0: pages of 16", {pages, mixed}, 0));
  specs.push_back(filled("unused slots 1e30: int8, pages of 16", {int8, mixed}, 1e30));
  specs.push_back(filled("unused slots 1e30: contiguous", {contiguous, mixed}, 1e30));
  for (const CacheChoice* layout : {&contiguous, &growing, &pages, &large}) {
    specs.push_back(forks("truncate: " + words(*layout), Choice{*layout, {}}.keeping_all(), all, cut));
  }
  CacheChoice int8_contiguous = contiguous;
  int8_contiguous.codecs = codecs()[3];
  specs.push_back(detours("truncate and continue: int8, contiguous", Choice{int8_contiguous, {}}.keeping_all()));
  specs.push_back(forks("fork: pages of 16", Choice{pages, {}}.keeping_all(), all));
  specs.push_back(forks("fork: int8, pages of 16", Choice{int8, {}}.keeping_all(), all));
  specs.push_back(forks("fork: contiguous", Choice{contiguous, {}}.keeping_all(), all));
  specs.push_back(forks("fork: mixed windows, pages of 16", {pages, mixed}, all, forked_at_its_end));
  specs.push_back(forks("fork: mixed windows, ring", {contiguous, mixed}, all, forked_at_its_end));
  specs.push_back(hits("prefix hits: pages of 16", Choice{pages, {}}.keeping_all(), all));
  specs.push_back(hits("prefix hits: pages of 64", Choice{large, {}}.keeping_all(), all));
  specs.push_back(hits("prefix hits: contiguous", Choice{contiguous, {}}.keeping_all(), all));
  specs.push_back(restored("restore: contiguous to pages of 16", {contiguous, {}}, {pages, {}}));
  specs.push_back(restored("restore: int8, pages to growing", {int8, {}}, {int8_growing, {}}));
  specs.push_back(restored("restore: mixed windows, ring to pages", {contiguous, mixed}, {pages, mixed}));
  specs.push_back(restored("restore: mixed windows, pages to ring", {large, mixed}, {contiguous, mixed}));
  return specs;
}

}  // namespace stet::lab
