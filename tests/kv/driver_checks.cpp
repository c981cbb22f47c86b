// What holds after each operation.
#include <algorithm>
#include <set>

#include "kv/driver.hpp"

namespace stet::kv_test {

void Driver::require(bool good, const Subject& subject, const char* what) const {
  if (good) return;
  throw Failed(subject.name + ", operation " + std::to_string(operation_) + " (" + doing_ + "): " + what);
}

template <class T>
void Driver::expect_error(const Subject& subject, const Result<T>& result, Code code, const char* what) {
  ++done_[what];
  require(!result, subject, what);
  require(result.error().code == code, subject, (what + (": " + result.error().message)).c_str());
  require(!result.error().message.empty() && result.error().message.find('\n') == std::string::npos, subject, what);
}

template void Driver::expect_error(const Subject&, const Result<void>&, Code, const char*);
template void Driver::expect_error(const Subject&, const Result<Seq>&, Code, const char*);
template void Driver::expect_error(const Subject&, const Result<Pos>&, Code, const char*);
template void Driver::expect_error(const Subject&, const Result<View>&, Code, const char*);
template void Driver::expect_error(const Subject&, const Result<std::unique_ptr<Step>>&, Code, const char*);
template void Driver::expect_error(const Subject&, const Result<std::unique_ptr<Cache>>&, Code, const char*);

// The view holds exactly the tokens that the extent says, and what the query after them sees is among them.
void Driver::check_rows(const Subject& subject, const View& view, std::size_t layer,
                        const std::vector<const Token*>& tokens, const Extent& extent) {
  const auto end = static_cast<Pos>(tokens.size());
  const Span span = spec_.layers[layer].span;
  require(view.span == span, subject, "the view's span differs");
  require(view.kept == extent.kept && view.first == extent.first && view.end() == end, subject,
          "the view has other positions");
  require(static_cast<Pos>(view.cells.size()) == extent.kept / 16 + (end + 15) / 16 - extent.first / 16, subject,
          "the number of cells differs");
  std::vector<std::byte> row;
  row.reserve(256);
  for (Pos pos = 0; pos < end; ++pos) {
    const bool visible = span.window == 0 || pos > end - span.window || pos < span.sinks;
    require(view.has(pos) || !visible, subject, "what the next query sees was evicted");
    if (!view.has(pos)) continue;
    row.clear();
    gather(*view.layout, view.cell(pos / 16), static_cast<int>(pos % 16), row);
    const auto& stored = (**tokens[static_cast<std::size_t>(pos)])[layer];
    if (row.size() == stored.size() && std::memcmp(row.data(), stored.data(), row.size()) == 0) continue;
    const std::string where = std::to_string(pos) + " of layer " + std::to_string(layer);
    require(false, subject, ("stored bits differ at position " + where).c_str());
  }
}

void Driver::check(const ModelSeq& seq) {
  std::vector<const Token*> tokens;
  for (const Token& token : seq.tokens) tokens.push_back(&token);
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    const Subject& subject = subjects_[i];
    const auto length = subject.cache->length(seq.handles[i]);
    require(length && *length == seq.length(), subject, "the length differs");
    const auto least = subject.cache->oldest_restorable(seq.handles[i]);
    require(least && *least == oldest(seq, subject), subject, "oldest_restorable differs");
    for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
      const auto view = subject.cache->peek(seq.handles[i], static_cast<int>(layer));
      require(view.has_value(), subject, "peeking failed");
      check_rows(subject, *view, layer, tokens, extent(seq, subject, layer));
    }
  }
}

// Before commit: the step sees its own rows, its sequences do not. The first query of a slice must find what it sees.
void Driver::check_step(const Appended& step, const Steps& steps) {
  for (std::size_t s = 0; s < step.order.size(); ++s) {
    const ModelSeq& seq = seqs_[step.order[s]];
    std::vector<const Token*> tokens;
    for (const Token& token : seq.tokens) tokens.push_back(&token);
    for (const Token& token : step.tokens[s]) tokens.push_back(&token);
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
        const View view = steps[i]->view(static_cast<int>(layer), static_cast<int>(s));
        check_rows(subjects_[i], view, layer, tokens, extent(seq, subjects_[i], layer));
        const Span span = spec_.layers[layer].span;
        for (Pos pos = 0; pos < seq.length(); ++pos) {
          const bool visible = span.window == 0 || pos > seq.length() - span.window || pos < span.sinks;
          require(view.has(pos) || !visible, subjects_[i], "what the step's first query sees was evicted");
        }
      }
    }
  }
  for (const ModelSeq& seq : seqs_) check(seq);
}

void Driver::check_usage() {
  Pos tokens = 0;
  for (const ModelSeq& seq : seqs_) tokens += seq.length();
  for (const Subject& subject : subjects_) {
    const CacheUsage usage = subject.cache->usage();
    require(usage.reserved == subject.reserved, subject, "reserved is not what was planned");
    require(usage.tokens == tokens && usage.seqs == static_cast<int>(seqs_.size()), subject, "tokens or seqs differ");
    std::size_t used = 0;
    for (const ModelSeq& seq : seqs_) {
      for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
        const Extent& has = extent(seq, subject, layer);
        used += static_cast<std::size_t>(has.kept + seq.length() - has.first) * row_bytes_[layer];
      }
    }
    require(usage.used == used, subject, "used differs");
    require(usage.copied == subject.copied, subject, "copied differs");
    if (subject.paged()) continue;
    std::size_t live = 0;
    for (const ModelSeq& seq : seqs_) {
      for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
        const Extent& has = extent(seq, subject, layer);
        const Pos cells = has.kept / 16 + (seq.length() + 15) / 16 - has.first / 16;
        live += static_cast<std::size_t>(cells) * scratch_[layer].layout().bytes;
      }
    }
    require(usage.live == live && usage.shared == 0, subject, "live or shared differ");
    const auto holding = std::count_if(seqs_.begin(), seqs_.end(), [](const auto& seq) { return seq.length() > 0; });
    require(subject.cache->pages().size() == static_cast<std::size_t>(holding) * heads_.size(), subject,
            "the number of places differs");
  }
}

std::size_t Driver::used(const Subject& subject, std::size_t g) const {
  const auto& owners = subject.owners[g];
  return static_cast<std::size_t>(std::count_if(owners.begin(), owners.end(), [](int n) { return n > 0; }));
}

// Counts who has which page by the views alone, and holds the cache's own account to it.
void Driver::check_pages(Subject& subject) {
  if (!subject.paged()) return;
  const auto at = static_cast<std::size_t>(&subject - subjects_.data());
  const Pos page_cells = subject.options.page_tokens / 16;
  std::size_t live = 0, shared = 0, count = 0;
  struct Known {
    Pos first = 0, filled = 0;
    const ModelSeq* longest = nullptr;
  };
  std::vector<std::vector<Known>> known;
  for (std::size_t g = 0; g < heads_.size(); ++g) {
    auto& owners = subject.owners[g];
    std::fill(owners.begin(), owners.end(), 0);
    known.emplace_back(owners.size());
    for (const ModelSeq& seq : seqs_) {
      const auto view = *subject.cache->peek(seq.handles[at], static_cast<int>(heads_[g]));
      for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
        if (groups_[layer] != g) continue;
        const auto other = *subject.cache->peek(seq.handles[at], static_cast<int>(layer));
        require(std::equal(view.cells.begin(), view.cells.end(), other.cells.begin(), other.cells.end()), subject,
                "layers alike have other cells");
      }
      std::set<std::size_t> mine;
      for (Pos cell = 0; cell * 16 < view.end(); ++cell) {
        if (!view.has(cell * 16)) continue;
        const auto number = static_cast<Pos>(view.cells[view.cell_index(cell)]);
        const auto page = static_cast<std::size_t>(number / page_cells);
        require(page < owners.size() && number % page_cells == cell % page_cells, subject, "a cell is out of place");
        Known& k = known[g][page];
        const Pos first = cell / page_cells * subject.options.page_tokens;
        if (owners[page] == 0) k.first = first;
        require(k.first == first, subject, "a page is of two places");
        k.filled = std::max(k.filled, std::min(view.end(), cell * 16 + 16) - first);
        if (!mine.insert(page).second) continue;
        ++owners[page];
        // Two owners of a page have the same tokens as far as both go.
        if (k.longest != nullptr) {
          const Pos end = std::min({k.longest->length(), seq.length(), first + subject.options.page_tokens});
          for (Pos pos = first; pos < end; ++pos) {
            const auto i = static_cast<std::size_t>(pos);
            const bool both =
                extent(seq, subject, heads_[g]).has(pos) && extent(*k.longest, subject, heads_[g]).has(pos);
            require(!both || *seq.tokens[i] == *k.longest->tokens[i], subject, "a page is shared by what differs");
          }
        }
        if (k.longest == nullptr || k.longest->length() < seq.length()) k.longest = &seq;
      }
    }
    std::size_t cell_bytes = 0;
    for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
      if (groups_[layer] == g) cell_bytes += scratch_[layer].layout().bytes;
    }
    const std::size_t page_bytes = static_cast<std::size_t>(page_cells) * cell_bytes;
    count += used(subject, g);
    live += used(subject, g) * page_bytes;
    shared +=
        static_cast<std::size_t>(std::count_if(owners.begin(), owners.end(), [](int n) { return n > 1; })) * page_bytes;
  }
  const CacheUsage usage = subject.cache->usage();
  require(usage.live == live && usage.shared == shared, subject, "live or shared differ");
  const auto pages = subject.cache->pages();
  require(pages.size() == count, subject, "the number of pages differs");
  for (const PageInfo& page : pages) {
    const auto g = static_cast<std::size_t>(page.group);
    require(page.layer == static_cast<int>(heads_[g]) && page.room == subject.options.page_tokens, subject,
            "a page's layer or room differs");
    require(page.layers == std::count(groups_.begin(), groups_.end(), g), subject, "a page's layers differ");
    const Known& k = known[g][page.page];
    require(page.owners == subject.owners[g][page.page] && page.owners > 0, subject, "a page's owners differ");
    require(page.first == k.first && page.filled == k.filled, subject, "a page's positions differ");
  }
}

// Every slot of every cell that holds no row of any sequence.
void Driver::check_poison(const Subject& subject) {
  if (!subject.options.poison || seqs_.empty()) return;
  const auto at = static_cast<std::size_t>(&subject - subjects_.data());
  std::vector<std::byte> row;
  for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    const Pos cells = pool_cells(spec_.layers[layer], subject.options);
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(cells), 0);
    View view;
    for (const ModelSeq& seq : seqs_) {
      view = *subject.cache->peek(seq.handles[at], static_cast<int>(layer));
      for (Pos pos = 0; pos < view.end(); ++pos) {
        if (!view.has(pos)) continue;
        const std::uint32_t number = view.cells[view.cell_index(pos / 16)];
        require(number < rows.size(), subject, "a cell is beyond the storage");
        rows[number] = static_cast<std::uint16_t>(rows[number] | 1U << (pos % 16));
      }
    }
    for (std::size_t cell = 0; cell < rows.size(); ++cell) {
      for (int slot = 0; slot < 16; ++slot) {
        if ((rows[cell] >> slot & 1U) != 0) continue;
        row.clear();
        gather(*view.layout, view.base + cell * view.layout->bytes, slot, row);
        require(row == subject.poison[layer], subject, "a slot without a row is not poison");
      }
    }
  }
}

void Driver::check_all() {
  for (const ModelSeq& seq : seqs_) check(seq);
  for (const Subject& subject : subjects_) check_poison(subject);
}

// Whether the last page of a slice's sequence, where it is partly filled, has to be copied: another owner has rows
// where the slice will write, or is to write there too and comes first.
bool Driver::copies(const Subject& subject, const Appended& step, std::size_t slice, std::size_t layer) const {
  const auto at = static_cast<std::size_t>(&subject - subjects_.data());
  const ModelSeq& seq = seqs_[step.order[slice]];
  const Pos length = seq.length(), page_tokens = subject.options.page_tokens;
  if (length % page_tokens == 0) return false;
  const auto page_at = [&](const ModelSeq& of, Pos pos) -> Pos {
    const auto view = *subject.cache->peek(of.handles[at], static_cast<int>(layer));
    return view.has(pos) ? view.cells[view.cell_index(pos / 16)] / (page_tokens / 16) : -1;
  };
  const Pos page = page_at(seq, length - 1);
  for (const ModelSeq& other : seqs_) {
    if (&other == &seq || other.length() < length) continue;
    if (other.length() == length) {
      if (page_at(other, length - 1) != page) continue;
      for (std::size_t s = 0; s < slice; ++s) {
        if (&seqs_[step.order[s]] == &other) return true;
      }
    }
    for (Pos pos = length; pos < std::min(other.length(), (length / page_tokens + 1) * page_tokens); ++pos) {
      if (page_at(other, pos) == page) return true;
    }
  }
  return false;
}

// What begin says.
std::optional<Code> Driver::expected(const Subject& subject, const Appended& step) const {
  const auto most = subject.options.max_step_tokens;
  for (std::size_t s = 0; s < step.order.size(); ++s) {
    if (seqs_[step.order[s]].length() + step.appends[s].tokens > subject.options.max_len) return Code::capacity;
    if (most > 0 && step.appends[s].tokens > most) return Code::capacity;
  }
  if (!subject.paged()) return std::nullopt;
  bool exhausted = false;
  for (std::size_t g = 0; g < heads_.size(); ++g) {
    std::size_t need = 0;
    for (std::size_t s = 0; s < step.order.size(); ++s) {
      const ModelSeq& seq = seqs_[step.order[s]];
      std::set<Pos> pages;
      for (Pos pos = 0; pos < seq.length(); ++pos) {
        if (extent(seq, subject, heads_[g]).has(pos)) pages.insert(pos / subject.options.page_tokens);
      }
      const std::size_t before = pages.size();
      for (Pos pos = seq.length(); pos < seq.length() + step.appends[s].tokens; ++pos) {
        pages.insert(pos / subject.options.page_tokens);
      }
      if (pages.size() > subject.owners[g].size()) return Code::capacity;
      need += pages.size() - before + (copies(subject, step, s, heads_[g]) ? 1 : 0);
    }
    exhausted = exhausted || need > subject.owners[g].size() - used(subject, g);
  }
  // A pool for max_seqs sequences never runs out.
  require(!exhausted || subject.options.pool_tokens > 0, subject, "a whole pool ran out");
  return exhausted ? std::optional(Code::exhausted) : std::nullopt;
}

}  // namespace stet::kv_test
