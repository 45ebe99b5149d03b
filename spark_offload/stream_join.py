"""`stream_join`: a sliding-window join of two DataFrames, one slice of history per task."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.pandas.types import to_arrow_type

from host.cpu import open_cpu
from host.device import open_when_free
from host.encoding import is_sortable
from host.output import result_names
from host.session import Session
from host.spec import JoinSpec
from host.transport import TRANSPORTS
from hw.errors import ParameterError, SpecError
from hw.parameters import ARCHITECTURES

from .shard import ShardedJoin
from .slices import Slices, sort_keys
from .streaming import both_streaming, check_streams, joined, shard_count
from .task import METRICS, Task, check_architecture

OFFLOADS = ("cpu", "sim", "fpga")
AMOUNT = "spark.task.resource.fpga.amount"
Length = str | int

_METRICS_TYPE = T.StructType([T.StructField(name, T.LongType()) for name in METRICS])


def stream_join(
    r: DataFrame,
    s: DataFrame,
    on: str,
    window: Length | tuple[Length, Length],
    time: str | tuple[str, str],
    offload: str = "cpu",
    architecture: str | None = None,
    device: str | None = None,
    tiebreak: Collection[str | tuple[str, str]] = (),
    partitions: int | None = None,
    observation: Observation | None = None,
    ordered: bool = False,
) -> DataFrame:
    """The pairs of rows of `r` and `s` for which `on` holds while both are in their windows.

    `on` is SQL text that names the columns as `r.x` and `s.a`. `window` is a duration or a number of rows
    ("10 minutes", "1000 rows"), or a pair of them for R and S. `time` names the event time, or is a pair of
    names; rows without event time join nothing. Rows arrive in the order of event time, then of the columns
    `tiebreak`, then R before S, then of their own values, and the result depends on nothing else: neither on
    partitions nor on the order of the input.

    `offload` says what joins: "cpu", the task's own core, where `device` may name a structure, such as
    cpu:bisort; "sim", the simulated gateware of `architecture` (handshake) or of the URL `device`; or "fpga",
    the device at the URL `device` (serial:, tcp: or xdma:), at which tasks take turns, and without one the
    devices that Spark schedules as the resource "fpga", one for each task. A device that is not of the
    `architecture` that is asked for is refused; the CPU has none, and needs none to be named.
    `partitions` says into how many slices, each a task, history is cut. The call itself reads the columns
    of the arrival order once, to choose the cuts. All columns of both sides come out; a name that both
    have becomes `r_name` and `s_name`. The first action on the result gives `observation` the counts of
    `task.METRICS`. If `ordered`, rows come by (later arrival, earlier arrival): sorted within each partition,
    and each partition before the next.
    """
    join = StreamJoin(r, s, on, window, time, offload, architecture, device, tiebreak, partitions, ordered)
    return join.frame(observation)


def explain(
    r: DataFrame,
    s: DataFrame,
    on: str,
    window: Length | tuple[Length, Length],
    time: str | tuple[str, str],
    **options,
) -> str:
    """What `stream_join` with the same arguments would do, and where. No Spark job runs."""
    return StreamJoin(r, s, on, window, time, **options).explain()


@dataclass
class StreamJoin:
    """The arguments of `stream_join`, checked."""

    r: DataFrame
    s: DataFrame
    on: str
    window: Length | tuple[Length, Length]
    time: str | tuple[str, str]
    offload: str = "cpu"
    architecture: str | None = None
    device: str | None = None
    tiebreak: Collection[str | tuple[str, str]] = ()
    partitions: int | None = None
    ordered: bool = False

    def __post_init__(self):
        if self.offload not in OFFLOADS:
            raise ParameterError(f"offload must be one of {', '.join(OFFLOADS)}, not {self.offload!r}")
        if self.architecture not in (None, *ARCHITECTURES):
            raise ParameterError(
                f"architecture must be one of {', '.join(ARCHITECTURES)} or None, not {self.architecture!r}"
            )
        if self.partitions is not None and (type(self.partitions) is not int or self.partitions < 1):
            raise ParameterError(f"partitions must be a positive integer or None, not {self.partitions!r}")
        for name, frame in (("r", self.r), ("s", self.s)):
            if not isinstance(frame, DataFrame):
                raise SpecError(f"{name} must be a DataFrame, not {frame!r}")
        self.streaming = both_streaming(self.r, self.s)
        conf = self.r.sparkSession.conf
        # Spark names columns without regard to case unless told otherwise.
        fold = str if conf.get("spark.sql.caseSensitive") == "true" else str.lower
        self._names = result_names(self.r.columns, self.s.columns, fold)
        self.spec = JoinSpec(
            self.on,
            self.window,
            self.time,
            _arrow_schema("r", self.r.schema),
            _arrow_schema("s", self.s.schema),
            tiebreak=self.tiebreak,
            timezone=conf.get("spark.sql.session.timeZone"),
        )
        if self.streaming:
            check_streams(self.r, self.s, self.spec.time, self.ordered)
        if self.offload != "fpga":
            default = {"cpu": "cpu:auto", "sim": f"sim:{self.architecture or ARCHITECTURES[0]}"}
            self.device = self.device or default[self.offload]
        if self.device is None:
            _check_resources(conf)
            self._where = f"{self.spec.explain()}\non the device that Spark gives to the task, as it fits"
            return
        accepted = TRANSPORTS if self.offload == "fpga" else (self.offload,)
        if self.device.partition(":")[0] not in accepted:
            schemes = ", ".join(f"{name}:" for name in accepted)
            raise ParameterError(
                f"with offload={self.offload!r} device must be a URL that starts with {schemes}, "
                f"not {self.device!r}"
            )
        if self.offload == "cpu":
            self._where = open_cpu(self.device, self.spec, threads=1).explain()
            return
        with open_when_free(self.device) as device:  # here, so that a bad URL fails before any task starts
            check_architecture(device, self.architecture)
            self._where = Session(device, self.spec).explain()

    def explain(self) -> str:
        """Where each part of the join runs, and in how many tasks."""
        most = self.partitions or self.r.sparkSession.conf.get("spark.sql.shuffle.partitions")
        what = "a core" if self.offload == "cpu" else "a device"
        return "\n".join(
            [
                self._where,
                f"in at most {most} tasks, each with {what}, a slice of history and the window before it",
            ]
        )

    def frame(self, observation: Observation | None = None) -> DataFrame:
        """The result. Of batches, reads the columns of the arrival order to choose the cuts."""
        if self.streaming:
            shards = shard_count(self.partitions, self.r.sparkSession.conf)
            join = ShardedJoin(self.spec, shards, "inner", self.device, self.architecture)
            return self._columns(joined(self.r, self.s, join))
        rows = self._side("r").union(self._side("s"))
        order = rows.drop("r", "s")
        slices = Slices.measure(order.where("t IS NOT NULL"), self.partitions)
        begin, owned = (slices.begin("r"), slices.begin("s")), (slices.r, slices.s)
        task = Task(self.spec, self.device, begin, owned, self.architecture, self.ordered)
        number = slices.number(
            [F.col(name) for name in order.columns], [field.dataType for field in order.schema]
        )
        last = {
            stream: slices.last(stream, self.spec.window, F.col("t"), F.col("owner")) for stream in ("r", "s")
        }
        copies = F.sequence("owner", F.when(F.col("is_s"), last["s"]).otherwise(last["r"]))
        pairs = (
            rows.withColumn("owner", number)
            .withColumn("slice", F.explode(copies))
            .repartitionById(len(slices), "slice")
            .sortWithinPartitions(*order.columns, *self._values("r"), *self._values("s"))
            .select("slice", (F.col("owner") == F.col("slice")).alias("own"), "is_s", "t", "r", "s")
            .mapInArrow(
                task.__call__,
                T.StructType(
                    [
                        T.StructField("r", self.r.schema),
                        T.StructField("s", self.s.schema),
                        T.StructField("metrics", _METRICS_TYPE),
                    ]
                ),
            )
        )
        if observation is not None:
            counts = (F.coalesce(F.sum(f"metrics.{name}"), F.lit(0)).alias(name) for name in METRICS)
            pairs = pairs.observe(observation, *counts)
        return self._columns(pairs.where("metrics IS NULL"))

    def _columns(self, pairs: DataFrame) -> DataFrame:
        """The columns of `r` and `s`, by their names in the result."""
        return pairs.select(
            *(F.col("r").getField(name).alias(alias) for name, alias in zip(self.r.columns, self._names[0])),
            *(F.col("s").getField(name).alias(alias) for name, alias in zip(self.s.columns, self._names[1])),
        )

    def _side(self, stream: str) -> DataFrame:
        """The rows of one stream: what orders them (t, k0, k1, ..., is_s), then a struct for each stream."""
        frame, other = (self.r, self.s) if stream == "r" else (self.s, self.r)
        is_s = stream == "s"

        def keys(name: str) -> list[Column]:
            return sort_keys(F.col(stream).getField(name), frame.schema[name].dataType)

        [time] = keys(self.spec.time[is_s])
        ties = [key for pair in self.spec.tiebreak for key in keys(pair[is_s])]
        return (
            frame.select(F.struct("*").alias(stream))
            .withColumn("r" if is_s else "s", F.lit(None).cast(other.schema))
            .select(
                time.cast("long").alias("t"),
                *(key.alias(f"k{k}") for k, key in enumerate(ties)),
                F.lit(is_s).alias("is_s"),
                "r",
                "s",
            )
        )

    def _values(self, stream: str) -> list[Column]:
        """What orders rows that are otherwise tied: their own values, but for those that have no order."""
        return [
            F.col(stream).getField(field.name)
            for field in self.spec.schemas[stream]
            if is_sortable(field.type)
        ]


def _check_resources(conf: RuntimeConfig) -> None:
    """Refuses settings with which a task would get no device of its own, or would never start."""
    amount, setting = conf.get(AMOUNT, None), f"{AMOUNT}=1"
    if amount is None:
        raise ParameterError(
            "with offload='fpga' device must be a URL, or Spark must schedule devices "
            f"({setting}, and spark.executor.resource.fpga.amount with its discoveryScript), not None"
        )
    if float(amount) != 1:
        raise ParameterError(f"{AMOUNT} must be 1, a device for each task, not {amount!r}")
    master = conf.get("spark.master", "")
    if master.startswith("local") and not master.startswith("local-cluster"):
        raise ParameterError(
            f"with offload='fpga' and {setting} spark.master must be a cluster, where Spark schedules "
            f"devices, not {master!r}; give device="
        )


def _has_variant(kind: T.DataType) -> bool:
    """Whether there is a variant anywhere in `kind`."""
    match kind:
        case T.StructType():
            return any(_has_variant(field.dataType) for field in kind)
        case T.ArrayType():
            return _has_variant(kind.elementType)
        case T.MapType():
            return _has_variant(kind.valueType)
    return isinstance(kind, T.VariantType)


def _arrow_schema(side: str, schema: T.StructType) -> pa.Schema:
    """The Arrow schema in which Spark hands `schema` to a task."""
    fields = []
    for field in schema:
        try:
            # A variant has an Arrow type, but one that cannot be null beside the rows of the other stream.
            if _has_variant(field.dataType):
                raise PySparkException("variant")
            fields.append(pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC"), field.nullable))
        except PySparkException:
            raise SpecError(
                f"`{side}.{field.name}` is {field.dataType.simpleString()}, which Spark cannot hand to "
                "Python as Arrow; drop the column or cast it"
            ) from None
    return pa.schema(fields)
