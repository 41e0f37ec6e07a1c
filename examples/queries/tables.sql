-- Defines the tables of an export in ./tables as views. DuckDB reads this file before a query:
--     duckdb -init tables.sql < slowest-ranks.sql
-- A table without rows, such as `experts` of a program without routers, is an empty view.
create or replace view processes as from read_parquet('tables/processes/**/*.parquet', hive_partitioning = true);
create or replace view threads as from read_parquet('tables/threads/**/*.parquet', hive_partitioning = true);
create or replace view windows as from read_parquet('tables/windows/**/*.parquet', hive_partitioning = true);
create or replace view iterations as from read_parquet('tables/iterations/**/*.parquet', hive_partitioning = true);
create or replace view ledger as from read_parquet('tables/ledger/**/*.parquet', hive_partitioning = true);
create or replace view calls as from read_parquet('tables/calls/**/*.parquet', hive_partitioning = true);
create or replace view events as from read_parquet('tables/events/**/*.parquet', hive_partitioning = true);
create or replace view samples as from read_parquet('tables/samples/**/*.parquet', hive_partitioning = true);
create or replace view gpu_spans as from read_parquet('tables/gpu_spans/**/*.parquet', hive_partitioning = true);
create or replace view kernels as from read_parquet('tables/kernels/**/*.parquet', hive_partitioning = true);
create or replace view copies as from read_parquet('tables/copies/**/*.parquet', hive_partitioning = true);
create or replace view metrics as from read_parquet('tables/metrics/**/*.parquet', hive_partitioning = true);
create or replace view experts as from read_parquet('tables/experts/**/*.parquet', hive_partitioning = true);
-- A view with one row per run, computed from the run's processes.
create or replace view runs as
select run, count(*) as processes, count(distinct host) as hosts, any_value(engine) as engine, any_value(command) as command,
       count(*) filter (state = 'damaged') as damaged
from processes group by run;
