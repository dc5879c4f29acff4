# LibTorch from the PyPI wheel as imported targets made by hand: find_package(Torch) would ask for nvcc and a toolkit.
# ASSAY_TORCH is the folder `torch` of the wheel (site-packages/torch).
set(ASSAY_TORCH "" CACHE PATH "folder `torch` of the torch ${ASSAY_TORCH_VERSION} wheel; ./dev setup finds or installs it")
if(NOT EXISTS "${ASSAY_TORCH}/include/ATen/ATen.h")
  message(FATAL_ERROR "No LibTorch in ASSAY_TORCH=\"${ASSAY_TORCH}\". Run ./dev setup, or configure with "
                      "-DASSAY_WITH_TORCH=OFF for the half that needs none.")
endif()
file(STRINGS "${ASSAY_TORCH}/version.py" version_line REGEX "^__version__")
if(NOT version_line MATCHES "'${ASSAY_TORCH_VERSION}([+].*)?'")
  message(FATAL_ERROR "ASSAY_TORCH holds ${version_line}, this project needs torch ${ASSAY_TORCH_VERSION}. Run ./dev setup.")
endif()

add_library(assay_libtorch INTERFACE)
target_include_directories(assay_libtorch SYSTEM INTERFACE
  "${ASSAY_TORCH}/include" "${ASSAY_TORCH}/include/torch/csrc/api/include" "${PROJECT_SOURCE_DIR}/cmake/gloo_stubs")
target_compile_definitions(assay_libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_options(assay_libtorch INTERFACE
  LINKER:--no-as-needed LINKER:--unresolved-symbols=ignore-in-shared-libs "LINKER:-rpath,${ASSAY_TORCH}/lib")
target_link_libraries(assay_libtorch INTERFACE "${ASSAY_TORCH}/lib/libtorch_cpu.so" "${ASSAY_TORCH}/lib/libc10.so"
                                               Threads::Threads)

if(ASSAY_CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(assay_libtorch INTERFACE -fpch-preprocess)  # ccache asks for it
endif()

# One precompiled header for all sources of this half: stable headers only.
if(ASSAY_PCH)
  file(WRITE "${PROJECT_BINARY_DIR}/libtorch_pch.cpp" "")
  add_library(assay_libtorch_pch OBJECT "${PROJECT_BINARY_DIR}/libtorch_pch.cpp")
  assay_options(assay_libtorch_pch)
  target_link_libraries(assay_libtorch_pch PRIVATE assay_libtorch)
  target_precompile_headers(assay_libtorch_pch PRIVATE
    <ATen/ATen.h> <torch/csrc/autograd/custom_function.h> <torch/csrc/distributed/c10d/Backend.hpp> <torch/library.h>)
endif()

function(assay_use_libtorch target)
  target_link_libraries(${target} PUBLIC assay_libtorch)
  if(ASSAY_PCH)
    target_precompile_headers(${target} REUSE_FROM assay_libtorch_pch)
  endif()
endfunction()
