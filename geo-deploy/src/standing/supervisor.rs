//! Looks after a standing cluster: what died starts again, what somebody asks for happens,
//! and faults end when their time is over.

use std::time::{Duration, Instant, SystemTime};

use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;
use tokio::sync::mpsc::Receiver;
use tokio::time::MissedTickBehavior;

use super::control::{Asked, FaultReport, NodeReport, Overview, Reply, Request, Response};
use super::restarts::Restarts;
use crate::backend::Plan;
use crate::backend::local::{Happened, Life, LocalCluster, Why};
use crate::fault::{self, Action, Effect, Fault, Target};
use crate::topology::Topology;

/// Time between two looks after processes and faults.
const TICK: Duration = Duration::from_millis(50);

/// A fault that holds, and what undoes it.
struct Active {
    number: u64,
    /// The action, its targets, and the role by which they were meant.
    text: String,
    effects: Vec<Effect>,
    began: Instant,
    ends: Option<Instant>,
}

/// A cluster and what it is subjected to.
pub(super) struct Supervisor<'a> {
    cluster: LocalCluster,
    topology: &'a Topology,
    restarts: Vec<Restarts>,
    faults: Vec<Active>,
    /// The newest fault's number.
    numbered: u64,
    chance: Pcg64Mcg,
}

/// Lines for the client that asked, or the reason for a refusal.
type Told = Result<Vec<String>, String>;

impl<'a> Supervisor<'a> {
    pub fn new(cluster: LocalCluster, plan: &'a Plan<'a>, restart: bool) -> Supervisor<'a> {
        let topology = plan.topology();
        Supervisor {
            cluster,
            topology,
            restarts: vec![Restarts::new(restart, Instant::now()); topology.len()],
            faults: Vec::new(),
            numbered: 0,
            chance: Pcg64Mcg::seed_from_u64(u64::from(std::process::id())),
        }
    }

    pub fn cluster(&self) -> &LocalCluster {
        &self.cluster
    }

    /// Until the end is asked for; returns where to say that it has come.
    pub async fn run(&mut self, mut asked: Receiver<Asked>) -> Option<Reply> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(Asked { request, reply }) = asked.recv() => {
                    if request == Request::Down {
                        return Some(reply);
                    }
                    let response = self.answer(request).await;
                    reply.send(&response).await;
                }
                _ = tick.tick() => self.tend(Instant::now()),
            }
        }
    }

    /// Ends the replicas, whatever state they are in.
    pub fn end(&mut self) {
        self.cluster.stop();
    }

    async fn answer(&mut self, request: Request) -> Response {
        self.tend(Instant::now());
        let told = match request {
            Request::Here | Request::Down => Ok(Vec::new()),
            Request::Status => return Response::Status(self.overview()),
            Request::Begin { fault, key } => self.begin(fault, key).await,
            Request::Start(targets) => self.again(&targets, Effect::Start).await,
            Request::Resume(targets) => self.again(&targets, Effect::Resume).await,
            Request::Heal(numbers) => self.heal(&numbers),
        };
        match told {
            Ok(lines) => Response::Done(lines),
            Err(why) => Response::Refused(why),
        }
    }

    /// Looks after processes and faults.
    fn tend(&mut self, now: Instant) {
        for (site, happened) in self.cluster.tend() {
            let name = self.name(site);
            match happened {
                Happened::Ended(Why::Died(how)) => {
                    self.restarts[site].died(now);
                    let then = self.restarts[site].words(now, name);
                    tracing::warn!(site = name, how, "a replica died; {then}");
                }
                Happened::Ended(Why::Refused(why)) => {
                    self.restarts[site].refused(now);
                    let then = self.restarts[site].words(now, name);
                    tracing::warn!(site = name, why, "a replica refuses to run; {then}");
                }
                Happened::Ended(why) => {
                    self.restarts[site].asked(now);
                    tracing::info!(site = name, %why, "a replica ended");
                }
                Happened::Started => tracing::info!(site = name, "a replica started again"),
                Happened::NotStarted(error) => {
                    tracing::error!(site = name, error, "a replica could not be started again");
                }
            }
        }
        for site in 0..self.restarts.len() {
            if self.restarts[site].is_due(now) {
                self.start_again(site, now);
            }
        }
        let over = |active: &Active| active.ends.is_some_and(|ends| ends <= now);
        while let Some(place) = self.faults.iter().position(over) {
            for line in self.undo(place) {
                tracing::info!("{line}");
            }
        }
    }

    /// Starts a replica that died. One that cannot be started counts as dead once more.
    fn start_again(&mut self, site: usize, now: Instant) {
        let name = self.name(site);
        match self.cluster.perform(Effect::Start(site)) {
            Ok(()) => tracing::info!(site = name, "a replica that died is started again"),
            Err(error) => {
                self.restarts[site].died(now);
                let then = self.restarts[site].words(now, name);
                tracing::error!(
                    site = name,
                    error = format!("{error:#}"),
                    "a replica cannot be started; {then}"
                );
            }
        }
    }

    async fn begin(&mut self, fault: Fault, key: Option<String>) -> Told {
        check(&fault, self.topology)?;
        let roles = self.cluster.roles(key.as_deref().map(str::as_bytes)).await;
        let mut scene = roles.scene(self.topology, &mut self.chance);
        let named = fault.named(&mut scene)?;
        let effects = named.begin(&mut scene)?;
        let mut done = Vec::new();
        let mut problems = Vec::new();
        for effect in effects {
            match self.cluster.perform(effect) {
                Ok(()) => done.push(effect),
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        if done.is_empty() {
            return Err(problems.join("; "));
        }
        for site in done
            .iter()
            .filter(|effect| !is_of_link(**effect))
            .flat_map(|e| e.sites())
        {
            self.restarts[site].asked(Instant::now());
        }
        let stays = fault.until_s.is_none() && fault.action != Action::Restart;
        let mut lines = self.remember(&fault, fault.in_words(&named), done);
        lines.extend(problems);
        lines.extend(stays.then(|| self.majority_lost()).flatten());
        Ok(lines)
    }

    /// Notes what is to be undone some day. Returns what to say of it.
    fn remember(&mut self, fault: &Fault, text: String, effects: Vec<Effect>) -> Vec<String> {
        let of_process = !fault.action.is_of_links() && fault.action != Action::FillDisk;
        let sites = self.names_of(&effects);
        tracing::info!("{text}: {sites}");
        if of_process && (fault.until_s.is_none() || fault.action == Action::Restart) {
            // What its processes do shows in their status.
            return vec![format!(
                "{}: {sites}{}",
                fault.action.name(),
                mend(fault.action, &sites)
            )];
        }
        self.numbered += 1;
        let began = Instant::now();
        let ends = fault.until_s.map(|s| began + Duration::from_secs_f64(s));
        let until = match fault.until_s {
            Some(s) => format!("it ends by itself in {s} s"),
            None => format!("`leasehold fault heal {}` ends it", self.numbered),
        };
        let line = format!("fault {}: {text}; {until}", self.numbered);
        self.faults.push(Active {
            number: self.numbered,
            text,
            effects,
            began,
            ends,
        });
        vec![line]
    }

    /// Starts or resumes replicas.
    async fn again(&mut self, targets: &[Target], effect: fn(usize) -> Effect) -> Told {
        let roles = self.cluster.roles(None).await;
        let sites = roles
            .scene(self.topology, &mut self.chance)
            .resolve(targets)?;
        let mut done = Vec::new();
        let mut problems = Vec::new();
        for site in sites {
            match self.cluster.perform(effect(site)) {
                Ok(()) => {
                    self.restarts[site].asked(Instant::now());
                    self.forget(effect(site));
                    done.push(self.name(site));
                }
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        if done.is_empty() {
            return Err(problems.join("; "));
        }
        let verb = match effect(0) {
            Effect::Start(_) => "started",
            _ => "resumed",
        };
        let mut lines = vec![format!("{verb}: {}", done.join(", "))];
        lines.extend(problems);
        Ok(lines)
    }

    /// Forgets an effect that was undone by hand: it is not undone again at its fault's end.
    fn forget(&mut self, undone: Effect) {
        for active in &mut self.faults {
            active
                .effects
                .retain(|effect| effect.undone() != Some(undone));
        }
        self.faults.retain(|active| !active.effects.is_empty());
    }

    fn heal(&mut self, numbers: &[u64]) -> Told {
        let known: Vec<u64> = self.faults.iter().map(|active| active.number).collect();
        if known.is_empty() {
            return Err(
                "there is no fault to heal; `leasehold cluster status` shows replicas that \
                        are down or paused"
                    .to_owned(),
            );
        }
        if let Some(unknown) = numbers.iter().find(|number| !known.contains(number)) {
            let known: Vec<String> = known.iter().map(u64::to_string).collect();
            return Err(format!(
                "there is no fault {unknown}; there are {}, see `leasehold fault list`",
                known.join(", ")
            ));
        }
        let mut lines = Vec::new();
        for number in known {
            if numbers.is_empty() || numbers.contains(&number) {
                let place = self
                    .faults
                    .iter()
                    .position(|active| active.number == number);
                lines.extend(place.map(|place| self.undo(place)).unwrap_or_default());
            }
        }
        Ok(lines)
    }

    /// Ends a fault; returns what to say of it.
    fn undo(&mut self, place: usize) -> Vec<String> {
        let Active {
            number,
            text,
            effects,
            ..
        } = self.faults.remove(place);
        let mut lines = vec![format!("fault {number} ended: {text}")];
        for undone in effects.into_iter().filter_map(Effect::undone) {
            match self.cluster.perform(undone) {
                Ok(()) => {}
                Err(error) => lines.push(format!("{error:#}")),
            }
        }
        lines
    }

    /// Returns the message if there is no majority any more.
    fn majority_lost(&self) -> Option<String> {
        let conditions = self.cluster.conditions();
        let n = conditions.len();
        let gone = conditions
            .iter()
            .filter(|found| found.life != Life::Up)
            .count();
        (gone > n - (n / 2 + 1)).then(|| {
            format!(
                "{gone} of {n} replicas do not run now. Without a majority nothing is written, and \
                 reads end with their leases, until enough of them run again: `leasehold cluster \
                 start NODE`, or `resume`"
            )
        })
    }

    fn overview(&self) -> Overview {
        let now = Instant::now();
        let conditions = self.cluster.conditions().into_iter().enumerate();
        let nodes = conditions.map(|(site, found)| {
            let site_name = self.name(site);
            let (state, why) = match found.life {
                Life::Up => ("up", None),
                Life::Paused => ("paused", None),
                Life::Ending => ("ending", None),
                Life::Down(why) => {
                    let then = self.restarts[site].words(now, site_name);
                    ("down", Some(format!("{why}; {then}")))
                }
            };
            let since = SystemTime::now().duration_since(found.since);
            NodeReport {
                site: site_name.to_owned(),
                state: state.to_owned(),
                for_s: since.unwrap_or_default().as_secs_f64(),
                why,
                process: found.process,
            }
        });
        Overview {
            nodes: nodes.collect(),
            faults: self
                .faults
                .iter()
                .map(|active| self.report(active, now))
                .collect(),
        }
    }

    fn report(&self, active: &Active, now: Instant) -> FaultReport {
        let left = |ends: Instant| ends.saturating_duration_since(now).as_secs_f64();
        FaultReport {
            number: active.number,
            text: active.text.clone(),
            for_s: now.duration_since(active.began).as_secs_f64(),
            ends_in_s: active.ends.map(left),
        }
    }

    fn name(&self, site: usize) -> &'a str {
        self.topology.names()[site]
    }

    fn names_of(&self, effects: &[Effect]) -> String {
        let mut sites: Vec<usize> = effects.iter().flat_map(|effect| effect.sites()).collect();
        sites.sort_unstable();
        sites.dedup();
        let names = sites.into_iter().map(|site| self.name(site));
        names.collect::<Vec<_>>().join(", ")
    }
}

fn is_of_link(effect: Effect) -> bool {
    matches!(effect, Effect::Fail { .. } | Effect::Mend { .. })
}

/// Returns the command that undoes an action on a process.
fn mend(action: Action, sites: &str) -> String {
    let nodes = sites.replace(", ", " ");
    match action {
        Action::Kill | Action::Stop => format!("; mend: `leasehold cluster start {nodes}`"),
        Action::Pause => format!("; mend: `leasehold cluster resume {nodes}`"),
        Action::Restart => "; each starts again when it has ended".to_owned(),
        _ => String::new(),
    }
}

/// Refuses a fault that makes no sense by itself, in the words of the command's options.
fn check(fault: &Fault, topology: &Topology) -> Result<(), String> {
    if let Some(s) = fault.until_s
        && !(s > 0.0 && s <= fault::TIME_S_MAX)
    {
        return Err(format!(
            "--for {s}: seconds are needed, more than 0 and at most a year"
        ));
    }
    let mut alone = fault.clone();
    // The client can undo it at any time, so a fault without an end is no lost majority.
    if alone.action != Action::Restart && alone.until_s.is_none() {
        alone.until_s = Some(1.0);
    }
    fault::check(&[alone], topology).map_err(|refused| {
        let field = refused.field.trim_start_matches("fault.1.");
        let option = match field {
            "target" => "NODE".to_owned(),
            other => format!("--{}", other.replace('_', "-")),
        };
        format!("{option} {}: {}", refused.found, refused.mend)
    })
}
