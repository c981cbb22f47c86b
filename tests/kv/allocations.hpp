// operator new of the test program: counted, and refused on request where it may be (a step's handle is allocated with
// nothrow new).
#pragma once

namespace stet::kv_test {

extern bool refuse_small_objects;
extern int allocations;

}  // namespace stet::kv_test
