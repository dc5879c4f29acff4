# cmake --install: programs in bin, recipes and pages in share/assay. assay-rank finds LibTorch where it was found at build time.
include(GNUInstallDirs)
install(TARGETS assay RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
if(TARGET assay-rank)
  set_target_properties(assay-rank PROPERTIES INSTALL_RPATH "${ASSAY_TORCH}/lib")
  install(TARGETS assay-rank RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
# The default recipe trains on the project's own texts.
install(DIRECTORY recipes docs harness model checkpoint DESTINATION "${CMAKE_INSTALL_DATADIR}/assay")
install(FILES README.md CONTRIBUTING.md LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/assay")
