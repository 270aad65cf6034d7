# What pip puts into site-packages (pyproject.toml): headlab/_C, headlab/bin/headlab, and in headlab/share
# what the program reads. Both find LibTorch in the torch beside headlab.
#
# Libraries that were found elsewhere than in the system are where they were; scripts/wheel copies
# all but torch's into the wheel.
set(_elsewhere ${CMAKE_BUILD_RPATH})
if(DEFINED ENV{CONDA_PREFIX})
  list(APPEND _elsewhere "$ENV{CONDA_PREFIX}/lib")
endif()
set_target_properties(headlab_python PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib;${_elsewhere}")
set_target_properties(headlab PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib;${_elsewhere}")
install(TARGETS headlab_python LIBRARY DESTINATION headlab COMPONENT python)
install(TARGETS headlab RUNTIME DESTINATION headlab/bin COMPONENT program)

# Not what scripts/data fetched: a hundred megabytes and more.
set(_share headlab/share)
install(DIRECTORY configs DESTINATION ${_share} COMPONENT program PATTERN configs/data EXCLUDE)
install(DIRECTORY configs/data/mnist configs/data/wikitext2 DESTINATION ${_share}/configs/data
        COMPONENT program)
install(FILES configs/data/README.md configs/data/tinyshakespeare.txt
        DESTINATION ${_share}/configs/data COMPONENT program)
install(PROGRAMS scripts/data DESTINATION ${_share}/scripts COMPONENT program)
