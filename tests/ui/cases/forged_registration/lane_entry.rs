use autobwd::lanes::LaneEntry;

fn main() {
    let _: Option<LaneEntry> = None;
}
