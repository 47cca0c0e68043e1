/* SPDX-License-Identifier: PostgreSQL */
/* Who retires the day of retention.pml: the keeper, piece by piece, or once.retire_day, at once. */

/* Pieces of once_job.keep_step: each is a transaction, and the keeper may be gone between any two of them. */
proctype keeper()
{
	bit ahead;
	byte n, inside_count;

end:	do
	:: atomic {                                             /* once._keep_begin: once._clock reads and judges the clock */
		begin(KEEPER, 0);
		if
		:: leapt != last_reading -> unsteady = 1; last_reading = leapt
		:: else
		fi;
		ahead = leapt
	   };
#ifdef CLOCK_READ_TWICE
		ahead = leapt;                                  /* another reading than the one that was judged */
#endif
		if
		:: atomic {                                     /* once._keep_close, once._close_day */
			tx[KEEPER].status == open && phase == look && clock_is_trusted && (horizon_passed || ahead) &&
			!(row[0].state == processing && !row[0].passed) ->
			count_inside();
			if
			:: nobody_inside -> phase = doubt
			:: else
			fi;
			roll_back(KEEPER)
		   }
		:: atomic {                                     /* once._keep_doubt: once._retire_blocks */
			tx[KEEPER].status == open && phase == doubt ->
			if
			:: row[0].state == processing && row[0].passed && row_lock[0] == 0 ->
				write(KEEPER, 0, keep_step, in_doubt, row[0].fence, row[0].attempts, 0);
				tx[KEEPER].status = committing
			:: row[0].state == processing && !(row[0].passed && row_lock[0] == 0) -> roll_back(KEEPER)      /* held */
			:: row[0].state != processing -> phase = move; roll_back(KEEPER)
			fi
		   }
		:: atomic {                                     /* once._keep_move, and the last look of once._keep_drop */
			tx[KEEPER].status == open && (phase == move || phase == drop) && clock_is_trusted ->
			if
			:: outlives(0, ahead) && row_lock[0] == 0 ->
				write(KEEPER, 0, move, row[0].state, row[0].fence, row[0].attempts, row[0].body);
				tx[KEEPER].to.archived = 1;
				tx[KEEPER].status = committing
			:: outlives(0, ahead) && row_lock[0] != 0 -> roll_back(KEEPER)                          /* held */
			:: !outlives(0, ahead) && phase == move -> phase = detach; roll_back(KEEPER)
			:: !outlives(0, ahead) && phase == drop ->
				count_inside();
				if
				:: nobody_inside -> day_dropped(0)
				:: else
				fi;
				roll_back(KEEPER)
			fi
		   }
		:: atomic { tx[KEEPER].status == open && phase == detach -> phase = drop; roll_back(KEEPER) }   /* once._keep_detach */
		:: atomic {                                     /* once._keep_archive: once._delete_past, under the advisory lock */
			tx[KEEPER].status == open && row[0].archived && row[0].state != in_doubt && past(0, ahead) && clock_is_trusted &&
			row_lock[0] == 0 && advisory[0] == 0 ->
			assert(over[0]);                        /* 7 */
			forget(0);
			roll_back(KEEPER)
		   }
		:: atomic {                                     /* once.retire_day, by somebody who has looked at the clock: its lock */
			tx[KEEPER].status == open && phase == look && horizon_passed && !leapt ->
			count_inside();
			if
			:: nobody_inside -> day_shut = KEEPER + 1
			:: else -> roll_back(KEEPER)
			fi
		   };
			if
			:: atomic {                             /* once._retire_blocks; DROP TABLE; COMMIT */
				tx[KEEPER].status == open ->
				if
				:: row[0].state == processing && !row[0].passed -> day_shut = 0; roll_back(KEEPER)      /* 55006 */
				:: row[0].state == processing && row[0].passed ->
					write(KEEPER, 0, retire_day, in_doubt, row[0].fence, row[0].attempts, 0);
					tx[KEEPER].to.archived = 1;
					tx[KEEPER].status = committing
				:: row[0].state != processing && outlives(0, false) ->
					write(KEEPER, 0, move, row[0].state, row[0].fence, row[0].attempts, row[0].body);
					tx[KEEPER].to.archived = 1;
					tx[KEEPER].status = committing
				:: row[0].state != processing && !outlives(0, false) -> tx[KEEPER].status = committing
				fi
			   }
			:: tx[KEEPER].status == aborted
			fi
		:: atomic { tx[KEEPER].status == open -> roll_back(KEEPER) }                                    /* nothing to do */
		:: tx[KEEPER].status == aborted
		fi;
		atomic { tx[KEEPER].status == committed || tx[KEEPER].status == aborted -> ahead = 0 }
	od
}

/* Days go by, and the clock leaps. A wrong clock is put right before it would be trusted (once.setting.clock_settle). */
proctype calendar()
{
end:	do
	:: atomic { (row[0].state == succeeded || row[0].state == failed_final) && !over[0] -> over[0] = 1 }
	:: atomic { !horizon_passed -> horizon_passed = 1 }
	:: atomic { leaps > 0 -> leaps--; leapt = !leapt }
	:: atomic { unsteady && !leapt && !last_reading -> unsteady = 0 }
	od
}
