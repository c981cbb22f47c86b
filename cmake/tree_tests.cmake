# Tests of the tree as a whole: the rooms, and the library as its users see it.

find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME tree.rooms COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_deps.py)
add_test(NAME tree.rooms_selftest COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_deps.py --selftest)
# The examples, built by find_package(stet) against an install. A sanitized library would need their flags too, and the
# tutorial's texts take too long there: not there.
if(STET_SANITIZE OR STET_FUZZ)
  return()
endif()
# What the tutorial says, printed anew.
add_test(NAME docs.tutorial COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/tutorial --check
  --stet $<TARGET_FILE:stet_cli>)
set_tests_properties(docs.tutorial PROPERTIES TIMEOUT 600)

set(prefix ${PROJECT_BINARY_DIR}/install)
add_test(NAME install.stage COMMAND ${CMAKE_COMMAND}
  -D build=${PROJECT_BINARY_DIR} -D prefix=${prefix} -P ${PROJECT_SOURCE_DIR}/cmake/stage_install.cmake)
add_test(NAME install.build_examples COMMAND ${CMAKE_CTEST_COMMAND}
  --build-and-test ${PROJECT_SOURCE_DIR}/examples ${PROJECT_BINARY_DIR}/examples --build-generator ${CMAKE_GENERATOR}
  --build-options -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefix})
add_test(NAME install.generate COMMAND ${PROJECT_BINARY_DIR}/examples/generate ${prefix}/share/stet/models/shakespeare-char "ROMEO:")
add_test(NAME install.embed_cache COMMAND ${PROJECT_BINARY_DIR}/examples/embed_cache)
add_test(NAME install.program COMMAND ${prefix}/bin/stet generate "ROMEO:" -n 4 WORKING_DIRECTORY ${prefix})

set_tests_properties(install.stage PROPERTIES FIXTURES_SETUP stet_installed)
set_tests_properties(install.build_examples PROPERTIES FIXTURES_REQUIRED stet_installed FIXTURES_SETUP stet_examples)
set_tests_properties(install.generate install.embed_cache PROPERTIES FIXTURES_REQUIRED stet_examples)
set_tests_properties(install.program PROPERTIES FIXTURES_REQUIRED stet_installed)
