#!/usr/bin/env bash
# What scripts/setup and make test say and do on machines that lack something. The machine is a PATH of our own making.
# shellcheck source=tests/checks/claims.sh
source "$(dirname "$0")/claims.sh"

# fresh_machine: a copy of what make needs from the repository, and a PATH with a shell's tools, make and a compiler that sees no library.
fresh_machine() {
  local tool
  tree=$scratch/tree bin=$scratch/bin
  rm -rf "$tree" "$bin"
  mkdir -p "$tree/tests" "$bin"
  cp -r "$root"/{Makefile,scripts,cmake} "$tree"
  cp "$root/tests/peers.txt" "$tree/tests"
  for tool in bash sh env make sed grep awk tr sort head cat cmp cp mv rm mkdir rmdir dirname sleep date nproc id touch; do
    ln -s "$(command -v "$tool")" "$bin/$tool"
  done
  fake c++ "exec $(command -v "${CXX:-c++}") -nostdinc -nostdinc++ -I$bin \"\$@\""
  fake apt-get 'exit 99'
  chmod -R a+rwX "$tree"
}

# fake NAME BODY: a command on that PATH.
fake() {
  rm -f "$bin/$1"
  printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$bin/$1"
  chmod 755 "$bin/$1"
}

# as_nobody COMMAND...: root gives up being root for it; anyone else is not root already.
as_nobody() {
  if [[ $(id -u) == 0 ]]; then
    run setpriv --reuid=65534 --regid=65534 --clear-groups env -i -C "$tree" PATH="$bin" "$@"
  else
    run env -i -C "$tree" PATH="$bin" "$@"
  fi
}
as_root() { fake id 'echo 0' && run env -i -C "$tree" PATH="$bin" "$@"; }

# equip TORCH PEERS: everything that packages bring. cmake is the real one; python3 answers as one without torch, keeps a list of what it was
# asked to install, and succeeds at that as the commands TORCH and PEERS do. Its torch can be imported once its dependencies are there.
equip() {
  local tool
  for tool in cmake ninja ccache clang-format clang-tidy zsh groff; do ln -sf "$(type -P "$tool" || type -P true)" "$bin/$tool"; done
  fake c++ "exec $(command -v "${CXX:-c++}") \"\$@\""
  rm -rf "$scratch/torch"
  mkdir -p "$scratch/torch/share/cmake/Torch"
  touch "$scratch/torch/share/cmake/Torch/TorchConfig.cmake"
  cat >"$scratch/python3" <<END
#!$(command -v bash)
here=\$(dirname "\$0")
case "\$*" in
  "-m venv"*)
    echo "\$*" >>"$scratch/asked"
    mkdir -p "\${!#}/bin"
    cp "$scratch/python3" "\${!#}/bin/python3"
    [[ \$* != *--system-site-packages* ]] || touch "\${!#}/bin/torch" "\${!#}/bin/importable" ;;
  *"pip install --dry-run"*) echo '["nvidia-nccl"]' >build/torch_report.json ;;
  *"pip install torch"*) echo "\$*" >>"$scratch/asked"; $1 && touch "\$here/torch" && if [[ \$* != *--no-deps ]]; then touch "\$here/importable"; fi ;;
  *"pip install -r build/torch_constraint.txt"*) echo "\$*" >>"$scratch/asked"; touch "\$here/importable" ;;
  *"pip install"*) echo "\$*" >>"$scratch/asked"; $2 ;;
  "-c import torch") [[ -e \$here/importable ]] ;;
  *find_spec*print*) [[ -e \$here/torch ]] && echo "$scratch/torch" ;;
  *find_spec*) [[ -e \$here/torch ]] ;;
  *'print("torch=='*) echo torch==2.13.0+cpu ;;
  *'m.version("torch")'*) [[ -e \$here/torch ]] ;;
esac
END
  chmod 755 "$scratch/python3"
  cp "$scratch/python3" "$bin/python3"
  : >"$scratch/asked"
  chmod a+w "$scratch/asked"
}

fresh_machine
as_nobody make test
claim "without root make test stops with one sentence" fails_with_one_sentence
claim "without root it gives the line to run, once for all that tests need" says \
  "apt-get install cmake ninja-build python3 python3-venv libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libgtest-dev clang-format clang-tidy zsh groff-base ccache"
claim "without root apt-get is not called" says_not "could not install"
as_nobody make quicktour
claim "the quicktour does not ask for what only tests need" says \
  "apt-get install cmake ninja-build python3 python3-venv libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libgtest-dev ccache"

rm "$bin/apt-get"
as_nobody make quicktour
claim "without apt-get one sentence says what is missing" fails_with_one_sentence
claim "without apt-get the packages are named and no apt-get line is given" says "the Debian packages cmake ninja-build"

fresh_machine
rm "$bin/c++"
as_nobody make test
claim "a missing compiler is a package too" says "ninja-build g++ python3"

fresh_machine
fake apt-get 'echo the mirror is away; exit 1'
as_root scripts/setup
claim "a failing apt-get is one sentence that names the log" fails_with_one_sentence
claim "a failing apt-get names the log" says "apt-get update failed; see build/setup.log."
claim "the log holds what apt-get said" grep -q "the mirror is away" "$tree/build/setup.log"

fresh_machine
fake apt-get "echo \"\$DEBIAN_FRONTEND \$*\" >>$scratch/apt"
as_root scripts/setup
claim "as root apt-get is updated first and then asked for what is missing" test "$(head -n 2 "$scratch/apt")" = \
  "noninteractive update
noninteractive install -y --no-install-recommends cmake ninja-build python3 python3-venv libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libgtest-dev ccache"
claim "what is still missing after apt-get is said" says "is not found although apt-get installed it"

fresh_machine
equip true true
fake cmake 'echo cmake version 3.22.1'
as_nobody scripts/setup
claim "an old cmake is refused in one sentence" fails_with_one_sentence
claim "an old cmake is refused with both versions" says "cmake 3.22.1 is too old: 3.25 or newer is needed."

for tool in clang-format clang-tidy zsh groff; do
  fresh_machine
  equip true true
  rm "$bin/$tool"
  as_nobody scripts/setup test
  claim "tests need $tool" says "only root can install them; run this, then make again: apt-get install ${tool/groff/groff-base}"
  as_nobody scripts/setup
  claim "building does not need $tool" succeeds
done

fresh_machine
equip true true
as_nobody scripts/setup
claim "with every package there, set-up needs no root" succeeds
claim "for a build LibTorch alone is installed" test "$(cat "$scratch/asked")" = \
  "-m venv build/venv
-m pip install torch==2.13.0+cpu"
: >"$scratch/asked"
as_nobody scripts/setup test
claim "for tests the pinned peers follow, and torch stays" test "$status/$(cat "$scratch/asked")" = \
  "0/-m pip install --constraint build/torch_constraint.txt -r tests/peers.txt"
: >"$scratch/asked"
as_nobody scripts/setup test
claim "the second run does nothing and says nothing" test "$status/$output/$(cat "$scratch/asked")" = "0//"
echo "# another list" >>"$tree/tests/peers.txt"
as_nobody scripts/setup test
claim "a changed list of peers is installed again, torch is not" test "$(cat "$scratch/asked")" = \
  "-m pip install --constraint build/torch_constraint.txt -r tests/peers.txt"

fresh_machine
equip true true
touch "$bin/torch"
as_nobody scripts/setup test
claim "the torch of the active python3 is seen from the private environment and not installed again" test "$(cat "$scratch/asked")" = \
  "-m venv --system-site-packages build/venv
-m pip install --constraint build/torch_constraint.txt -r tests/peers.txt"

# Stock PyPI: a CUDA build alone. An empty CUDACXX hides the CUDA toolkit that this machine may have.
fresh_machine
equip '[[ $* != *+cpu ]]' true
as_nobody CUDACXX= scripts/setup
claim "only a CUDA build and no toolkit is enough" succeeds
claim "of the CUDA build its CPU part is installed, and torch last" test "$(cat "$scratch/asked")" = \
  "-m venv build/venv
-m pip install torch==2.13.0+cpu
-m pip install cuda-toolkit[cudart,cupti]==13.0.3
-m pip install torch==2.13.0 --no-deps"
claim "one line says so, and how to get the small one" says \
  "installing the CPU part of the CUDA build (540 MB; for the small one: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu)"
: >"$scratch/asked"
as_nobody CUDACXX= scripts/setup test
claim "tests import torch in Python, which takes the rest of it" test "$status/$(cat "$scratch/asked")" = \
  "0/-m pip install -r build/torch_constraint.txt
-m pip install --constraint build/torch_constraint.txt -r tests/peers.txt"
claim "how large the rest is, is said" says "the CUDA libraries: 2.2 GB"

fresh_machine
equip '[[ $* != *+cpu ]]' true
fake nvcc true
as_nobody scripts/setup
claim "with a toolkit the wheel that pip offers is taken whole" test "$status/$(tail -n 1 "$scratch/asked")" = "0/-m pip install torch==2.13.0"
claim "that it is not the CPU build is said" says "pip finds no +cpu build"

fresh_machine
equip false true
as_nobody CUDACXX= scripts/setup
claim "a torch that cannot be had is one sentence" fails_with_one_sentence
claim "a torch that cannot be had names the log" says "LibTorch 2.13.0 could not be installed with pip (is there a network?)"

fresh_machine
equip true 'exit 1'
as_nobody scripts/setup test
claim "peers that cannot be had are one sentence" fails_with_one_sentence
claim "peers that cannot be had are named" says "the Python packages of tests/peers.txt could not be installed with pip (is there a network?)"
finish
