//! Collective operators: ranks are replicas.

use autobwd::{
    Error, ErrorKind,
    parallel::{CAllgather, CAllreduceSum, CBroadcast, CReduceSum, CReducescatter},
};

use super::prelude::*;

rules!(CAllgather, CAllreduceSum, CBroadcast, CReduceSum, CReducescatter);

/// Requires that the program is made for as many ranks as there are replicas; 0 suits any number.
fn require_ranks(x: &Hlo, nranks: i32) {
    let replicas = x.replicas();
    if usize::try_from(nranks).is_ok_and(|ranks| ranks != 0 && ranks != replicas) {
        let text = format!("the program is made for {nranks} ranks, not {replicas}");
        x.fail_with(Error::new(ErrorKind::Rank, text));
    }
}

/// The replica that an attribute names.
fn existing_replica(x: &Hlo, attr: &str, rank: i32) -> usize {
    let replicas = x.replicas();
    let replica = usize::try_from(rank).ok().filter(|rank| *rank < replicas);
    if replica.is_none() {
        x.fail_with(Error::attr(attr, format!("must be below the number of ranks, {replicas}")));
    }
    replica.unwrap_or(0)
}

impl Rule<Hlo> for CAllreduceSum<Hlo> {
    fn apply(&mut self) {
        self.x.first().into_iter().for_each(|x| require_ranks(x, self.nranks));
        self.out = Hlo::all_reduce(&self.x, Reduction::Sum);
    }
}
impl Rule<Hlo> for CReduceSum<Hlo> {
    fn apply(&mut self) {
        let root = existing_replica(&self.x, "root_id", self.root_id);
        let sum = Hlo::all_reduce(std::slice::from_ref(&self.x), Reduction::Sum).remove(0);
        self.out = sum.on_replica(root, 0.0);
    }
}
impl Rule<Hlo> for CBroadcast<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.of_replica(existing_replica(&self.x, "root", self.root));
    }
}
impl Rule<Hlo> for CAllgather<Hlo> {
    fn apply(&mut self) {
        require_ranks(&self.x, self.nranks);
        self.out = self.x.all_gather(0);
    }
}
impl Rule<Hlo> for CReducescatter<Hlo> {
    fn apply(&mut self) {
        require_ranks(&self.x, self.nranks);
        self.out = self.x.reduce_scatter(Reduction::Sum, 0);
    }
}
