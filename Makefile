# Every target sets up first: `setup.sh` runs when the stamp is older than what it installs from.

PYTHON := .venv/bin/python
STAMP := .venv/.ready
BENCH_CPU = $(PYTHON) -m spark_offload.bench_cpu $(if $(RESUME),--resume)

.PHONY: help setup test demo examples sim bitstream area timing engines figures latency power bench restarts docs dist lint lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 11

setup: $(STAMP) ## make .venv, and install pinned wheels and missing Debian packages

$(STAMP): setup.sh requirements.lock pyproject.toml
	./setup.sh
	touch $@

test: $(STAMP) ## run the tests
	$(PYTHON) -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

demo: $(STAMP) ## join the papers' benchmark streams with Spark on simulated gateware
	$(PYTHON) -m spark_offload.demo

examples: $(STAMP) ## trades and quotes, sensor fusion, click attribution: joined, checked and drawn in build/examples
	$(PYTHON) -m spark_offload.examples

sim: $(STAMP) ## cocotb regression, or one configuration: make sim CORES=16 (ARCH= SEGMENT= LANES= BUFFER= DIMS= FANOUT= ORDERING= LEVELS= SSEGMENT= HOMES= INDEX= INPUTS= LINK= SEED=)
	$(PYTHON) -m sim.regression $(if $(ARCH),--architecture $(ARCH)) $(if $(CORES),--cores $(CORES)) \
	  $(if $(SEGMENT),--segment $(SEGMENT)) $(if $(LANES),--lanes $(LANES)) $(if $(BUFFER),--buffer $(BUFFER)) \
	  $(if $(DIMS),--dims $(DIMS)) $(if $(FANOUT),--fanout $(FANOUT)) $(if $(ORDERING),--ordering $(ORDERING)) \
	  $(if $(SSEGMENT),--s_segment $(SSEGMENT)) $(if $(HOMES),--homes $(HOMES)) $(if $(INDEX),--index $(INDEX)) \
	  $(if $(LEVELS),--levels $(LEVELS)) $(if $(INPUTS),--inputs $(INPUTS)) $(if $(LINK),--link $(LINK)) $(if $(SEED),--seed $(SEED))

bitstream: $(STAMP) ## a board's bitstream: make bitstream BOARD=ulx3s-85f (ARCH= CORES= SEGMENT= LANES= BUFFER= DIMS= FANOUT= ORDERING= SSEGMENT= HOMES= INDEX= INPUTS= MHZ= BAUD= SEEDS=)
	$(PYTHON) -m hw.bitstream $(if $(BOARD),--board $(BOARD)) $(if $(ARCH),--architecture $(ARCH)) \
	  $(if $(CORES),--cores $(CORES)) $(if $(SEGMENT),--segment $(SEGMENT)) $(if $(LANES),--lanes $(LANES)) \
	  $(if $(BUFFER),--buffer $(BUFFER)) $(if $(DIMS),--dims $(DIMS)) $(if $(FANOUT),--fanout $(FANOUT)) \
	  $(if $(ORDERING),--ordering $(ORDERING)) $(if $(SSEGMENT),--s_segment $(SSEGMENT)) $(if $(HOMES),--homes $(HOMES)) \
	  $(if $(INDEX),--index $(INDEX)) $(if $(INPUTS),--inputs $(INPUTS)) $(if $(MHZ),--mhz $(MHZ)) $(if $(BAUD),--baud $(BAUD)) $(if $(SEEDS),--seeds $(SEEDS))

area: $(STAMP) ## cells on xc6v, mapped, by number of cores
	$(PYTHON) -m hw.area

timing: $(STAMP) ## cells and MHz on ECP5, placed and routed: make timing CORES=4,16 (ARCH= SEEDS=)
	$(PYTHON) -m hw.timing $(if $(ARCH),--architecture $(ARCH)) $(if $(CORES),--cores $(CORES)) $(if $(SEEDS),--seeds $(SEEDS))

engines: $(STAMP) ## cells and MHz of mergers, probers and all of BI-Sort for 1 to 16 records per cycle (ONLY="merger prober" LANES="1 2")
	$(PYTHON) -m hw.engines $(if $(ONLY),--only $(ONLY)) $(if $(LANES),--lanes $(LANES))

figures: $(STAMP) ## MHz against cores up to a full ECP5; hours, goes on after a stop (ARCH= CORES= SEEDS=)
	$(PYTHON) -m hw.scaling $(if $(ARCH),--architecture $(ARCH)) $(if $(CORES),--cores $(CORES)) $(if $(SEEDS),--seeds $(SEEDS))

latency: $(STAMP) ## latency of handshake, SplitJoin and low-latency chains against the model, drawn (SIZES=8x32,8x8)
	$(PYTHON) -m sim.latency $(if $(SIZES),--sizes $(SIZES))

power: $(STAMP) ## relative power of 1, 2, 5 and 10 cores at equal throughput, by toggles
	$(PYTHON) -m sim.power

bench: $(STAMP) ## cycles per tuple of the larger configurations; the CPU engine and Spark joins against their peers (ONLY="steady spark" RESUME=1)
	$(if $(ONLY),,$(PYTHON) -m sim.bench)
	$(if $(ONLY),,$(PYTHON) -m sim.skew)
	$(if $(ONLY),,$(PYTHON) -m sim.bench_insertion)
	$(if $(ONLY),,$(PYTHON) -m sim.bench_probing)
	$(if $(ONLY),,$(PYTHON) -m sim.bench_bisort)
	$(if $(ONLY),,$(PYTHON) -m host.bench_device)
	timeout 1800 $(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(if $(ONLY),$(if $(filter-out spark,$(ONLY)),$(BENCH_CPU) --only $(filter-out spark,$(ONLY))),$(BENCH_CPU))
	$(if $(ONLY),$(if $(filter spark,$(ONLY)),$(PYTHON) -m spark_offload.bench_spark),$(PYTHON) -m spark_offload.bench_spark)

restarts: $(STAMP) ## kill a streaming join at random points: make restarts KILLS=5 (SEED=)
	$(PYTHON) -m pytest tests/spark/test_restart.py -s --kills $(or $(KILLS),2) $(if $(SEED),--seed $(SEED))

docs: $(STAMP) ## write the pages that are made from definitions
	$(PYTHON) -m hw.link_page
	$(PYTHON) -m hw.boards
	$(PYTHON) -m hw.instruction_page

dist: $(STAMP) ## what a cluster needs, in build/dist: a wheel, a zip for spark-submit (DEVICES='sim:handshake?cores=4')
	$(PYTHON) -m spark_offload.dist $(if $(DEVICES),--devices $(foreach url,$(DEVICES),'$(url)'))

lint: $(STAMP) ## check style and format
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

lock: ## write requirements.lock anew, with the newest versions that pyproject.toml allows
	./setup.sh lock

clean: ## remove .venv and all that was generated
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
