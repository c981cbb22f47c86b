// What stands behind a Tokenizer.
#pragma once

#include <utility>

#include "stet/tokenizer.hpp"
#include "text/added.hpp"
#include "text/pretokenizer.hpp"
#include "text/vocabulary.hpp"

namespace stet {

struct Tokenizer::Impl {
  text::Vocabulary vocabulary;
  text::PreTokenizer pre_tokenizer;
  text::AddedFinder all_added, always_added;  // with the special tokens, and without

  Impl(text::Vocabulary v, text::PreTokenizer p)
      : vocabulary(std::move(v)),
        pre_tokenizer(std::move(p)),
        all_added(vocabulary.added(), [](const text::AddedToken&) { return true; }),
        always_added(vocabulary.added(), [](const text::AddedToken& token) { return !token.special; }) {}
  Impl(const Impl&) = delete;  // the finders point into the vocabulary
  Impl& operator=(const Impl&) = delete;
};

namespace text {

/// For loaders of every format.
Result<Tokenizer> make_tokenizer(Vocabulary vocabulary);

}  // namespace text
}  // namespace stet
