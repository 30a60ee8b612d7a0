//! Laws of the loader over random options: orders, shards, positions; its thread, and its errors.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use autobwd::{Error, ErrorKind, Result, Tensor};
use autobwd_data::{Batch, Dataset, Loader, LoaderBuilder, Position, TensorDataset};
use proptest::prelude::*;

/// The numbers from 0, as a field `x`.
fn numbers(n: usize) -> TensorDataset {
    let numbers: Vec<i64> = (0..n as i64).collect();
    TensorDataset::new([("x", Tensor::from_vec([n], numbers).unwrap())]).unwrap()
}

fn examples(batch: &Batch) -> Vec<i64> {
    batch.get("x").unwrap().slice::<i64>().unwrap().to_vec()
}

/// The batches of an epoch.
fn epoch(loader: &mut Loader) -> Vec<Vec<i64>> {
    loader.epoch().map(|batch| examples(&batch.unwrap())).collect()
}

#[derive(Clone, Copy, Debug)]
struct Options {
    n: usize,
    batch: usize,
    ranks: usize,
    seed: Option<u64>,
    drop_last: bool,
}

impl Options {
    fn loader(self, rank: usize) -> LoaderBuilder {
        let loader = Loader::builder(numbers(self.n)).batch(self.batch).shard(rank, self.ranks);
        let loader = loader.drop_last(self.drop_last);
        match self.seed {
            Some(seed) => loader.shuffle(seed),
            None => loader,
        }
    }

    /// The examples that an epoch leaves out.
    fn left_out(self) -> usize {
        let rest = self.n % (self.batch * self.ranks);
        if self.drop_last || rest < self.ranks { rest } else { 0 }
    }
}

fn options() -> impl Strategy<Value = Options> {
    let all = (1..60_usize, 1..9_usize, 1..5_usize, proptest::option::of(any::<u64>()), any::<bool>());
    let options =
        all.prop_map(|(n, batch, ranks, seed, drop_last)| Options { n, batch, ranks, seed, drop_last });
    options.prop_filter("no batch", |options| options.left_out() < options.n)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn ranks_share_an_epoch(options in options(), epochs in 1..4) {
        let mut ranks: Vec<Loader> = (0..options.ranks).map(|rank| options.loader(rank).build().unwrap()).collect();
        let one = Options { batch: options.batch * options.ranks, ranks: 1, ..options };
        let mut one = one.loader(0).build().unwrap();
        for _ in 0..epochs {
            let parts: Vec<Vec<Vec<i64>>> = ranks.iter_mut().map(epoch).collect();
            let mut whole = epoch(&mut one);
            // One rank leaves out nothing where several would leave out fewer examples than they are.
            whole.truncate(ranks[0].batches());
            for part in &parts {
                prop_assert_eq!(part.len(), ranks[0].batches());
            }
            // The batches of the ranks are the large batch, in their order.
            for (k, whole) in whole.iter().enumerate() {
                let joined: Vec<i64> = parts.iter().flat_map(|part| part[k].clone()).collect();
                prop_assert_eq!(&joined, whole);
                let sizes: Vec<usize> = parts.iter().map(|part| part[k].len()).collect();
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                prop_assert!(sizes.iter().all(|size| (1..=options.batch).contains(size)));
            }
            // Every example comes once.
            let mut all: Vec<i64> = parts.concat().concat();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), options.n - options.left_out());
            if options.seed.is_none() {
                prop_assert_eq!(all.last(), Some(&(all.len() as i64 - 1)));
            }
        }
    }

    #[test]
    fn resumed_loader_delivers_what_the_first_one_would(
        options in options(), before in 0..40, after in 1..20, prefetch in 0..4_usize, other in 0..4_usize,
    ) {
        let mut first = options.loader(0).prefetch(prefetch).build().unwrap();
        for _ in 0..before {
            first.next_batch().unwrap();
        }
        let state = first.state();
        // Reading ahead and another rank do not change the state.
        let last_rank = options.ranks - 1;
        let mut resumed = options.loader(0).prefetch(other).build().unwrap();
        resumed.resume(&state).unwrap();
        let mut of_another_rank = options.loader(last_rank).build().unwrap();
        of_another_rank.resume(&state).unwrap();
        prop_assert_eq!(resumed.position(), first.position());
        prop_assert_eq!(of_another_rank.position(), first.position());
        for _ in 0..after {
            prop_assert_eq!(resumed.next_batch().unwrap(), first.next_batch().unwrap());
            prop_assert_eq!(resumed.state(), first.state());
        }
    }

    #[test]
    fn any_position_is_found(options in options(), epoch in 0..5_u64, batch in 0..10_usize) {
        let mut walked = options.loader(0).prefetch(0).build().unwrap();
        let mut sought = options.loader(0).build().unwrap();
        let position = Position { epoch, batch: batch.min(walked.batches()) };
        while walked.position() != position {
            walked.next_batch().unwrap();
        }
        sought.next_batch().unwrap();
        sought.seek(position).unwrap();
        prop_assert_eq!(sought.next_batch().unwrap(), walked.next_batch().unwrap());
    }
}

#[test]
fn order_follows_from_seed_and_epoch() -> Result<()> {
    let orders = |seed: u64| {
        let mut loader = Loader::builder(numbers(8)).batch(8).shuffle(seed).build().unwrap();
        [epoch(&mut loader).concat(), epoch(&mut loader).concat()]
    };
    // A resumed run of a later version needs the same order.
    assert_eq!(orders(7), [[6, 4, 0, 5, 7, 1, 2, 3], [4, 1, 0, 5, 3, 2, 7, 6]]);
    assert_ne!(orders(7)[0], orders(8)[0]);
    // All orders of three examples occur, none much more often than the others.
    let mut loader = Loader::builder(numbers(3)).batch(3).shuffle(0).prefetch(0).build()?;
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..6000 {
        *counts.entry(epoch(&mut loader).concat()).or_insert(0) += 1;
    }
    assert!(counts.len() == 6 && counts.values().all(|n| (850..1150).contains(n)), "{counts:?}");
    Ok(())
}

/// Examples that fail, or panic, at one of them; counts the batches read.
struct Unreliable {
    reads: AtomicUsize,
    panics: bool,
}

impl Dataset for Unreliable {
    fn len(&self) -> usize {
        10
    }
    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if indices.contains(&5) {
            assert!(!self.panics, "example 5 is bad");
            return Err(Error::new(ErrorKind::Io, "cannot read `5.png`"));
        }
        numbers(10).batch(indices)
    }
    fn fingerprint(&self) -> u64 {
        0
    }
}

#[test]
fn error_stands_for_its_batch() -> Result<()> {
    for prefetch in [0, 1, 3] {
        let data = Unreliable { reads: AtomicUsize::new(0), panics: false };
        let mut loader = Loader::builder(data).batch(2).prefetch(prefetch).build()?;
        let batches: Vec<_> = loader.epoch().map(|batch| batch.map(|batch| examples(&batch))).collect();
        assert_eq!(batches.len(), 5);
        assert_eq!(batches[2].as_ref().unwrap_err().to_string(), "cannot read `5.png`");
        assert_eq!(batches[3].as_ref().unwrap(), &[6, 7]);
        assert_eq!(loader.position(), Position { epoch: 1, batch: 0 });
    }
    Ok(())
}

#[test]
fn panic_of_a_data_set_is_an_error() -> Result<()> {
    for prefetch in [0, 1, 3] {
        let data = Unreliable { reads: AtomicUsize::new(0), panics: true };
        let mut loader = Loader::builder(data).batch(2).prefetch(prefetch).build()?;
        let batches: Vec<_> = loader.epoch().map(|batch| batch.map(|batch| examples(&batch))).collect();
        let e = batches[2].as_ref().unwrap_err();
        let start = "the data set, at epoch 0, batch 2, panicked at autobwd/data/tests/loader.rs:";
        let text = e.to_string();
        assert!(text.starts_with(start) && text.ends_with(": example 5 is bad"), "{text}");
        assert_eq!(e.kind(), ErrorKind::Panic);
        assert_eq!(batches[4].as_ref().unwrap(), &[8, 9]);
        // The examples that a state compares cannot be read: the state goes without them.
        let state = loader.state();
        loader.resume(&state)?;
    }
    Ok(())
}

/// Returns a batch that a closure makes of the indices.
struct Custom<F>(usize, F);

impl<F: Fn(&[usize]) -> Result<Batch> + Send + Sync> Dataset for Custom<F> {
    fn len(&self) -> usize {
        self.0
    }
    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        self.1(indices)
    }
    fn fingerprint(&self) -> u64 {
        0
    }
}

fn column(name: &str, numbers: impl Iterator<Item = usize>) -> Result<Batch> {
    let numbers: Vec<i64> = numbers.map(|number| number as i64).collect();
    Batch::new([(name, Tensor::from_vec([numbers.len()], numbers)?)])
}

#[test]
fn batches_with_another_length_or_other_fields_are_refused() -> Result<()> {
    for prefetch in [0, 1, 3] {
        let mut texts = vec![];
        let short = |indices: &[usize]| {
            let skipped = usize::from(indices.contains(&4));
            column("x", indices.iter().copied().skip(skipped))
        };
        let renamed =
            |indices: &[usize]| column(if indices.contains(&4) { "y" } else { "x" }, indices.iter().copied());
        let converted = |indices: &[usize]| match indices.contains(&4) {
            false => column("x", indices.iter().copied()),
            true => Batch::new([("x", Tensor::from_vec([2], vec![0_f32; 2])?)]),
        };
        let loaders = [
            Loader::builder(Custom(6, short)),
            Loader::builder(Custom(6, renamed)),
            Loader::builder(Custom(6, converted)),
        ];
        for loader in loaders {
            let mut loader = loader.batch(2).prefetch(prefetch).build()?;
            let batches: Vec<_> = loader.epoch().collect();
            assert!(batches.len() == 3 && batches[..2].iter().all(Result::is_ok));
            texts.push(batches[2].as_ref().unwrap_err().to_string());
        }
        assert_eq!(
            texts,
            [
                "the data set has returned 1 examples at epoch 0, batch 2, not 2",
                "the data set has returned fields `y` (int64); the first batch had `x` (int64)",
                "the data set has returned fields `x` (float32); the first batch had `x` (int64)",
            ]
        );
    }
    Ok(())
}

#[test]
fn changed_data_are_noticed_though_their_fingerprint_is_constant() -> Result<()> {
    let loader = |name: &'static str, order: fn(usize) -> usize| {
        let batch = move |indices: &[usize]| column(name, indices.iter().map(|index| order(*index)));
        Loader::builder(Custom(100, batch)).batch(2).build()
    };
    let state = loader("x", |k| k)?.state();
    loader("x", |k| k)?.resume(&state)?;
    let refused = |mut loader: Loader| loader.resume(&state).unwrap_err().to_string();
    let text = "the data have changed: other content or order of 100 examples";
    assert_eq!(refused(loader("x", |k| 99 - k)?), text);
    assert_eq!(refused(loader("x", |k| (k + 1) % 100)?), text);
    let text = "the data have changed: the fields were `x` (int64), and are `y` (int64)";
    assert_eq!(refused(loader("y", |k| k)?), text);

    // Examples that change at every read say nothing, but their fields do.
    let reads = AtomicUsize::new(0);
    let random = move |indices: &[usize]| {
        let read = reads.fetch_add(1, Ordering::SeqCst);
        column("x", indices.iter().map(|index| index + read))
    };
    let mut random = Loader::builder(Custom(100, random)).batch(2).build()?;
    let state = random.state();
    random.resume(&state)?;
    assert!(loader("y", |k| k)?.resume(&state).is_err());
    Ok(())
}

#[test]
fn thread_reads_no_further_than_it_should_and_ends_with_its_loader() -> Result<()> {
    for prefetch in [1, 2, 5] {
        let data = Arc::new(Unreliable { reads: AtomicUsize::new(0), panics: false });
        let mut loader = Loader::builder(data.clone()).prefetch(prefetch).build()?;
        let sampled = data.reads.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(data.reads.swap(0, Ordering::SeqCst), sampled, "the thread starts with the first batch");
        for delivered in 1..=3 {
            loader.next_batch()?;
            let start = Instant::now();
            while data.reads.load(Ordering::SeqCst) < delivered + prefetch {
                assert!(start.elapsed() < Duration::from_secs(60), "the thread reads too little");
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(20));
            assert_eq!(data.reads.load(Ordering::SeqCst), delivered + prefetch);
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&data), 1, "the thread has the data set");
    }
    Ok(())
}

#[test]
fn impossible_options_are_refused() {
    let refused = |builder: LoaderBuilder| builder.build().unwrap_err().to_string();
    let loader = || Loader::builder(numbers(5));
    assert_eq!(refused(loader().batch(0)), "a batch needs at least 1 example, not 0");
    assert_eq!(refused(loader().shard(2, 2)), "there is no rank 2 among 2: ranks count from 0");
    assert_eq!(refused(loader().shard(0, 0)), "there is no rank 0 among 0: ranks count from 0");
    let text = "a data set of 5 examples has no batch: at least 8 are needed";
    assert_eq!(refused(loader().batch(4).shard(1, 2).drop_last(true)), text);
    assert!(refused(loader().batch(usize::MAX).shard(7, 9)).contains("at least 9"));
    assert!(refused(Loader::builder(numbers(0))).contains("at least 1 "));
    let mut loader = loader().batch(2).build().unwrap();
    let text = loader.seek(Position { epoch: 1, batch: 4 }).unwrap_err().to_string();
    assert_eq!(text, "there is no position epoch 1, batch 4: an epoch has 3 batches");
}

#[test]
fn largest_numbers_are_no_fault() -> Result<()> {
    let loader = Loader::builder(numbers(5)).batch(usize::MAX).shuffle(u64::MAX).prefetch(usize::MAX);
    let mut loader = loader.shard(1, 2).build()?;
    loader.seek(Position { epoch: u64::MAX, batch: 0 })?;
    assert_eq!(epoch(&mut loader), epoch(&mut loader));
    Ok(())
}

#[test]
fn state_of_other_data_or_options_is_refused() -> Result<()> {
    let loader = |n: usize| Loader::builder(numbers(n)).batch(2).shuffle(1);
    let state = loader(8).build()?.state();
    let refused = |builder: LoaderBuilder| {
        let e = builder.build().unwrap().resume(&state).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Checkpoint);
        e.to_string()
    };
    assert_eq!(refused(loader(9)), "the data have changed: there were 8 examples, and there are 9");
    let other = TensorDataset::new([("x", Tensor::from_vec([8], vec![0_i64; 8])?)])?;
    let text = "the data have changed: other content or order of 8 examples";
    assert_eq!(refused(Loader::builder(other).batch(2).shuffle(1)), text);
    let renamed = TensorDataset::new([("y", Tensor::from_vec([8], (0..8).collect::<Vec<i64>>())?)])?;
    let text = "the data have changed: the fields were `x` (int64), and are `y` (int64)";
    assert_eq!(refused(Loader::builder(renamed).batch(2).shuffle(1)), text);
    let text = "the state belongs to another loader: its batch size is 2, not 4";
    assert_eq!(refused(loader(8).batch(4)), text);
    assert!(refused(loader(8).shuffle(2)).ends_with("its seed is 1, not 2"));
    assert!(refused(Loader::builder(numbers(8)).batch(2)).ends_with("its seed is 1, not none"));
    assert!(refused(loader(8).shard(0, 2)).ends_with("its number of ranks is 1, not 2"));
    assert!(refused(loader(8).drop_last(true)).ends_with("its `drop_last` is false, not true"));
    for text in ["", "{}", "[1]", &state[1..]] {
        let e = loader(8).build()?.resume(text).unwrap_err();
        assert!(
            e.kind() == ErrorKind::Format && e.to_string().starts_with("not the state of a loader"),
            "{e}"
        );
    }
    let behind = state.replace("\"batch\":0", "\"batch\":100");
    assert!(loader(8).build()?.resume(&behind).is_err());
    Ok(())
}

#[test]
fn state_changes_no_batch_of_a_data_set_that_counts_its_reads() -> Result<()> {
    for prefetch in [0, 2] {
        let epochs = |takes_states: bool| -> Result<Vec<Vec<i64>>> {
            let reads = AtomicUsize::new(0);
            let counting = move |indices: &[usize]| {
                let read = reads.fetch_add(1, Ordering::SeqCst);
                column("x", indices.iter().map(|index| index + 100 * read))
            };
            let mut loader = Loader::builder(Custom(10, counting)).batch(4).prefetch(prefetch).build()?;
            let mut batches = vec![];
            for _ in 0..3 {
                batches.extend(loader.next_batch()?.map(|batch| examples(&batch)));
                if takes_states && prefetch == 0 {
                    let state = loader.state();
                    loader.resume(&state)?;
                } else if takes_states {
                    loader.state();
                }
            }
            Ok(batches)
        };
        assert_eq!(epochs(true)?, epochs(false)?);
    }
    Ok(())
}

/// Panics in its length, or in its fingerprint.
struct Unmeasured(bool);

impl Dataset for Unmeasured {
    fn len(&self) -> usize {
        assert!(!self.0, "no length");
        10
    }
    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        numbers(10).batch(indices)
    }
    fn fingerprint(&self) -> u64 {
        panic!("no fingerprint")
    }
}

#[test]
fn data_set_that_cannot_be_measured_is_an_error() {
    for (of_length, text) in [(true, "no length"), (false, "no fingerprint")] {
        let e = Loader::builder(Unmeasured(of_length)).build().unwrap_err();
        assert!(e.kind() == ErrorKind::Panic && e.message().ends_with(text), "{e}");
    }
}
