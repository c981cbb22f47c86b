// The memory bill of a model: what its cache costs at each context, batch, codec and layout, beside its weights. Pure
// arithmetic: every size comes from plan_cache, the same that a cache reserves by.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/presets.hpp"
#include "report/report.hpp"
#include "stet/engine.hpp"
#include "stet/result.hpp"

namespace stet::lab {

struct BillOptions {
  std::vector<Pos> contexts;  // tokens of a sequence; empty: the model's context
  std::vector<int> batches = {1};
  // How caches store, each as EngineOptions::kv; an empty one stores the type of the arithmetic.
  std::vector<std::vector<KvCodecs>> caches = {{}};
  std::vector<CacheMode> layouts = {CacheMode::contiguous};
  Pos page_tokens = EngineOptions{}.page_tokens;  // of paged layouts
  Pos pool_tokens = 0;
  std::optional<Span> span;        // what queries of all layers see, instead of what the model says
  std::vector<std::size_t> rooms;  // bytes of memory that weights and cache are to fit into
};

/// A codec and a layout.
struct BillCache {
  std::string k, v;  // "f16"; where layers differ "0-1 f32, 2-11 int8"
  CacheMode layout = CacheMode::contiguous;
};

/// One row of the bill, in bytes.
struct BillRow {
  Pos context = 0;
  int batch = 0;
  std::size_t cache = 0;         // index into Bill::caches
  std::size_t per_token = 0;     // a token's rows in all layers, scales included, nothing rounded
  std::size_t rows = 0;          // what `batch` sequences of `context` tokens store: per_token x tokens, but in a
                                 // layer with a window no more than it sees; the number of the published tables
  std::size_t per_sequence = 0;  // the cells that a sequence has room in: rows rounded up to cells of 16 or to pages,
                                 // windows with room for a step; of a growing cache both its places
  std::size_t cells = 0;         // of all sequences; less than batch x per_sequence with a smaller pool
  std::size_t total = 0;         // cells and the cache's tables: what it reserves, to the byte
  bool past_context = false;     // more tokens than the model has positions for
};

/// Where something passes something else; `tokens` is the last context at which it does not yet.
struct Crossing {
  std::size_t cache = 0;  // index into Bill::caches
  int batch = 1;
  std::optional<Pos> tokens;  // none: it never does
};

/// The most that fits into `room` bytes, weights included, activations not: the longest context at this batch
/// (`asks_context`), or the largest batch at this context. 0: not even one.
struct Fit {
  std::size_t room = 0;
  std::size_t cache = 0;  // index into Bill::caches
  bool asks_context = false;
  Pos context = 0;
  int batch = 0;
  bool any = false;           // as long as anybody asks for: all windows are full, and nothing grows any more
  bool past_context = false;  // more tokens than the model has positions for
};

/// Layers that see only so much: their rows stop growing.
struct Windows {
  int layers = 0;   // that have a window
  Pos longest = 0;  // tokens that the widest of them sees, sinks included
  Pos sinks = 0;    // of these, the first ones of the sequence
};

struct Bill {
  Shape model;
  std::vector<BillCache> caches;
  std::vector<BillRow> rows;               // contexts fastest, then batches, then caches
  std::vector<Crossing> passes_weights;    // cached rows of `batch` sequences against the weights
  std::optional<Pos> attention_layers;     // the depth up to which attention is no more work than the layers' matrices
  std::optional<Pos> attention_with_head;  // the same with the output head
  std::vector<Fit> fits;
  std::vector<Pos> curve_contexts;           // of the plot
  std::vector<std::vector<BillRow>> curves;  // of each cache, at the first batch
  Windows windows;
};

/// Code::invalid_argument and Code::capacity as of plan_cache, and for layers that the model has not.
Result<Bill> bill(const Shape& model, const BillOptions& options);

/// "36.0 KiB", "0.281 GiB": three digits; bytes below a KiB are exact.
std::string binary_words(double bytes);

/// What a table of the bill shows: one row a row, what fits, and where which passes which.
report::Table rows_table(const Bill& bill);
report::Table fits_table(const Bill& bill);
/// Sentences: weights, windows, crossings.
std::vector<std::string> bill_notes(const Bill& bill);
report::Report report_of(const Bill& bill);

/// All presets with a token's bytes in 16 bits.
report::Table presets_table();

}  // namespace stet::lab
